-- Writes those of these letters that are plainly new. Returns a flag for each; nothing where something might be merged.
-- ARGV: prefix, then for each letter: key, number of fields, fields, number of members, members with their scores, number of
-- counts, key and field of each.
if redis.call('HGET', P .. ':meta', 'dedup') == '1' or redis.call('EXISTS', P .. ':alias') == 1 then return {} end
for key, kind in pairs({i = 'zset', n = 'hash', groups = 'hash', lines = 'hash'}) do
  local found = redis.call('TYPE', P .. ':' .. key)['ok']
  if found ~= 'none' and found ~= kind then
    return redis.error_reply('WRONGTYPE ' .. P .. ':' .. key .. ' is a ' .. found .. ', expected ' .. kind)
  end
end
local out, at, seq = {}, 2, nil
while at <= #ARGV do
  local key, n = ARGV[at], tonumber(ARGV[at + 1])
  local fields = at + 2
  local members = fields + n
  local m = tonumber(ARGV[members])
  local counts = members + 1 + m
  local c = tonumber(ARGV[counts])
  if redis.call('EXISTS', key) == 1 then
    out[#out + 1] = 0
  else
    if not seq then seq = string.format('%.0f', redis.call('HINCRBY', P .. ':meta', 'seq', 1)) end
    redis.call('HSET', key, 'v', seq, unpack(ARGV, fields, fields + n - 1))
    redis.call('ZADD', P .. ':i', unpack(ARGV, members + 1, members + m))
    for i = counts + 1, counts + c, 2 do redis.call('HINCRBY', ARGV[i], ARGV[i + 1], 1) end
    out[#out + 1] = 1
  end
  at = counts + 1 + c
end
return out
