-- ARGV: a name, which is left if there is none. Read first: a server out of memory takes no `SET`, not even one that would
-- change nothing.
local name = redis.call('GET', KEYS[1])
if name then return name end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
