-- Appends to the processing audit, once for each token. ARGV: prefix, token, life in ms, entries.
local done = P .. ':done:' .. ARGV[2]
if redis.call('EXISTS', done) == 1 then return 0 end
for i = 4, #ARGV do redis.call('XADD', P .. ':processed', '*', 'e', ARGV[i]) end
redis.call('SET', done, '', 'PX', ARGV[3])
return 1
