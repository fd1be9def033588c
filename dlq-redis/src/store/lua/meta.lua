-- The time of the server, version of the layout, whether the store deduplicates, and the last fencing token.
local t = redis.call('TIME')
local m = redis.call('HMGET', P .. ':meta', 'schema', 'dedup', 'fence')
return {t[1], t[2], m[1], m[2], m[3]}
