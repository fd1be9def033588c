-- Opens or creates a store. ARGV: prefix, version of the layout, identity of a new store. Returns version and identity.
local key = P .. ':meta'
if not redis.call('HGET', key, 'schema') then
  redis.call('HSET', key, 'schema', ARGV[2], 'id', ARGV[3], 'seq', 0, 'fence', 0)
end
return redis.call('HMGET', key, 'schema', 'id')
