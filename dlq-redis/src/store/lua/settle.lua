-- Says what became of a commit, and lets it never happen if it has not. ARGV: prefix, token, life in ms.
local done = P .. ':done:' .. ARGV[2]
local before = redis.call('GET', done)
if before then return before end
redis.call('SET', done, 'void', 'PX', ARGV[3])
return 'void'
