-- ARGV: how long a key that is not done is kept, in microseconds.
if not phase then return {'gone'} end
local kept = phase == 'd' and 0 or tonumber(ARGV[1])
if ends + kept > now then return {'kept'} end
redis.call('DEL', KEYS[1])
return {'purged'}
