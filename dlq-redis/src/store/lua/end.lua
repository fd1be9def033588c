-- Leaves at most so many marks of runs. ARGV: prefix, letter, number.
local key, left = P .. ':marks', tonumber(ARGV[3])
local before = redis.call('HGET', key, ARGV[2])
if left == 0 then
  redis.call('HDEL', key, ARGV[2])
elseif before and tonumber(string.match(before, '^%d+')) > left then
  redis.call('HSET', key, ARGV[2], ARGV[3])
end
return 1
