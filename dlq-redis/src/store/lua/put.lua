-- Writes those of these letters that are plainly new. Returns a flag for each; nothing where something might be merged.
-- ARGV: prefix, then for each letter: key, number of fields, fields, number of members, members with their scores, number of
-- sets, key and member of each, number of counts, key and field of each.
if redis.call('HGET', P .. ':meta', 'dedup') == '1' or redis.call('EXISTS', P .. ':alias') == 1 then return {} end
local function typed(key, kind)
  local found = redis.call('TYPE', key)['ok']
  if found == 'none' or found == kind then return nil end
  return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', expected ' .. kind)
end
for key, kind in pairs({i = 'zset', n = 'hash', groups = 'hash', lines = 'hash'}) do
  local wrong = typed(P .. ':' .. key, kind)
  if wrong then return wrong end
end
-- All is looked at before anything is written.
local out, new, at = {}, {}, 2
while at <= #ARGV do
  local it = {key = at, fields = at + 2}
  it.members = it.fields + tonumber(ARGV[at + 1]) + 1
  it.sets = it.members + tonumber(ARGV[it.members - 1]) + 1
  it.counts = it.sets + tonumber(ARGV[it.sets - 1]) + 1
  at = it.counts + tonumber(ARGV[it.counts - 1])
  it.last = at - 1
  if redis.call('EXISTS', ARGV[it.key]) == 1 then
    out[#out + 1] = 0
  else
    for i = it.sets, it.counts - 2, 2 do
      local wrong = typed(ARGV[i], 'set')
      if wrong then return wrong end
    end
    new[#new + 1] = it
    out[#out + 1] = 1
  end
end
if #new == 0 then return out end
local seq = string.format('%.0f', redis.call('HINCRBY', P .. ':meta', 'seq', 1))
for _, it in ipairs(new) do
  redis.call('HSET', ARGV[it.key], 'v', seq, unpack(ARGV, it.fields, it.members - 2))
  redis.call('ZADD', P .. ':i', unpack(ARGV, it.members, it.sets - 2))
  for i = it.sets, it.counts - 2, 2 do redis.call('SADD', ARGV[i], ARGV[i + 1]) end
  for i = it.counts, it.last, 2 do redis.call('HINCRBY', ARGV[i], ARGV[i + 1], 1) end
end
return out
