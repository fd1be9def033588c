-- Operations. ARGV: prefix, ids; those that are not over, if none is named.
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
if #ARGV == 1 then ids = redis.call('ZRANGE', P .. ':live', 0, -1) end
local out = {}
for i, id in ipairs(ids) do out[i] = {id, redis.call('HGETALL', P .. ':op:' .. id)} end
return out
