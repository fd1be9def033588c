-- Counts a run that begins, once for each token. Returns how many had begun before. ARGV: prefix, letter, token.
local key = P .. ':marks'
local before = redis.call('HGET', key, ARGV[2]) or '0'
local count, token = string.match(before, '^(%d+):?(.*)$')
if token == ARGV[3] then return tonumber(count) - 1 end
redis.call('HSET', key, ARGV[2], string.format('%.0f', tonumber(count) + 1) .. ':' .. ARGV[3])
return tonumber(count)
