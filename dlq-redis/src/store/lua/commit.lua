-- Writes what a verb has decided, if everything that it looked at is still so. See `write.rs` for the codes.
-- ARGV: prefix, token of the commit or '', its life in ms, number of checks, checks, writes.
-- Returns {1, number of the last note or -1}; {0, what has changed}; or {2, answer} if this token was settled before.
local done = P .. ':done:' .. ARGV[2]
if ARGV[2] ~= '' then
  local before = redis.call('GET', done)
  if before then return {2, before} end
end
local at = 5
for _ = 1, tonumber(ARGV[4]) do
  local code, key = ARGV[at], ARGV[at + 1]
  if code == 'h' then
    if (redis.call('HGET', key, ARGV[at + 2]) or '') ~= ARGV[at + 3] then return {0, key} end
    at = at + 4
  elseif code == 'e' then
    if redis.call('HEXISTS', key, ARGV[at + 2]) ~= tonumber(ARGV[at + 3]) then return {0, key} end
    at = at + 4
  elseif code == 't' then
    local kind = redis.call('TYPE', key)['ok']
    if kind ~= 'none' and kind ~= ARGV[at + 2] then
      return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. kind .. ', expected ' .. ARGV[at + 2])
    end
    at = at + 3
  elseif code == 'l' then
    if redis.call('LLEN', key) ~= tonumber(ARGV[at + 2]) then return {0, key} end
    at = at + 3
  elseif code == 'z' then
    local found = redis.call('ZRANGEBYLEX', P .. ':i', ARGV[at + 1], ARGV[at + 2])
    if table.concat(found) ~= ARGV[at + 3] then return {0, 'aliases'} end
    at = at + 4
  else
    if redis.call('HGET', key, 's') == 'canary' then return {0, key} end
    at = at + 2
  end
end

local note, seq = -1, nil
-- The number of this commit, which no other has: the version of what it writes.
local function version()
  if not seq then seq = string.format('%.0f', redis.call('HINCRBY', P .. ':meta', 'seq', 1)) end
  return seq
end

while at <= #ARGV do
  local code = ARGV[at]
  if code == 'W' then
    local n = tonumber(ARGV[at + 1])
    redis.call(unpack(ARGV, at + 2, at + 1 + n))
    at = at + 2 + n
  elseif code == 'L' then
    local n = tonumber(ARGV[at + 2])
    redis.call('HSET', ARGV[at + 1], 'v', version(), unpack(ARGV, at + 3, at + 2 + n))
    at = at + 3 + n
  elseif code == 'C' then
    if redis.call('HINCRBY', ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]) == 0 then
      redis.call('HDEL', ARGV[at + 1], ARGV[at + 2])
    end
    at = at + 4
  elseif code == 'F' then
    if tonumber(redis.call('HGET', P .. ':meta', 'fence') or 0) < tonumber(ARGV[at + 1]) then
      redis.call('HSET', P .. ':meta', 'fence', ARGV[at + 1])
    end
    at = at + 2
  elseif code == 'N' then
    note = redis.call('RPUSH', P .. ':audit', ARGV[at + 1]) - 1
    at = at + 2
  elseif code == 'A' then
    local I = P .. ':i'
    for _, member in ipairs(redis.call('ZRANGEBYLEX', I, ARGV[at + 1], ARGV[at + 2])) do
      redis.call('HDEL', P .. ':alias', string.sub(member, -16))
      redis.call('ZREM', I, member)
    end
    at = at + 3
  elseif code == 'O' then
    -- Counts are increments, and whether it is complete follows from them.
    local id, now, state, next, steers = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5] == '1'
    local op, n = P .. ':op:' .. id, tonumber(ARGV[at + 6])
    at = at + 7
    for _ = 1, n do
      redis.call('HINCRBY', op, ARGV[at], ARGV[at + 1])
      at = at + 2
    end
    if state == '' then state = redis.call('HGET', op, 's') end
    local is_over = state == 'completed' or state == 'cancelled'
    if not is_over and state ~= 'preparing' then
      local open = 0
      for _, count in ipairs(redis.call('HMGET', op, 'q:queued', 'q:released', 'q:sending')) do
        open = open + (tonumber(count or 0))
      end
      if open == 0 then
        state, is_over, steers = 'completed', true, true
      end
    end
    redis.call('HSET', op, 's', state, 'u', now, 'v', version())
    if next ~= '' then redis.call('HSET', op, 'n', next) end
    if steers then redis.call('HSET', op, 'w', version()) end
    if is_over then redis.call('ZREM', P .. ':live', id) end
  else
    return redis.error_reply('ERR unknown code')
  end
end
if ARGV[2] ~= '' then redis.call('SET', done, note, 'PX', ARGV[3]) end
return {1, note}
