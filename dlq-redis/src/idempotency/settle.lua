-- ARGV: fence, what to do, and for it:
-- extend: length of the lease, and how long a key that is not done is kept after it
-- complete: how long the key is kept
-- release: what is added to the attempts, by what the counts are multiplied, and how long the key is kept
if not phase or fence ~= ARGV[1] then return {'lost'} end
local what, first, second, third = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
-- What is said again is as it was.
if (what == 'complete' and phase == 'd') or (what == 'release' and phase == 'f') then return {'ok'} end
if phase ~= 'h' then return {'lost'} end
-- The expiry comes first: it is a write that a server out of memory takes, and after it the others pass as well.
if what == 'extend' then
  expire(now + first + second)
  redis.call('HSET', KEYS[1], 'u', whole(now + first))
elseif what == 'complete' then
  expire(now + first)
  redis.call('HSET', KEYS[1], 'p', 'd', 's', whole(now), 'u', whole(now + first))
  -- Nobody asks for these again, and most keys are done.
  redis.call('HDEL', KEYS[1], 'n', 'a', 'c')
elseif what == 'release' then
  expire(now + third)
  attempts = math.max(0, math.min(attempts * second + first, 4294967295))
  redis.call('HSET', KEYS[1], 'p', 'f', 'a', whole(attempts), 'c', whole(crashes * second), 's', whole(now), 'u', whole(now))
end
return {'ok'}
