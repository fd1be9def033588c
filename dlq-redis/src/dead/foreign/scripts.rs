//! Scripts that send letters of other libraries back. Each is repeated without harm after its answer was lost: the letter has
//! gone then, and the note says by whom it was sent.
//!
//! All answer two texts: `added`, `sent` by another, `gone`, or `refused` and why.

use crate::client::Script;

/// Asks who has sent a letter that is not there any more. KEYS: notes. ARGV: letter, operation.
pub(super) static SENT_BY: Script = Script::new(
    r"
local there = redis.call('HGET', KEYS[1], ARGV[1])
local by = there and there:match('^(%S+)')
if by == ARGV[2] then return {'added', ''} end
return {by and 'sent' or 'gone', ''}
",
);

/// Sends an entry of chasquimq back. KEYS: stream, dead letters, notes. ARGV: letter, operation, id of the entry, then fields
/// and values. The first write is that into the stream. The note ends with the id of the last dead letter: a copy has none that
/// is greater, and a death that comes later has.
pub(super) static CHASQUIMQ: Script = Script::new(
    r"
local there = redis.call('HGET', KEYS[3], ARGV[1])
local by, times = '', 0
if there then
  local who, before = there:match('^(%S+) %S+ (%d+) ')
  by, times = who or '', tonumber(before) or 0
end
if #redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[3]) == 0 then
  if by == ARGV[2] then return {'added', ''} end
  return {there and 'sent' or 'gone', ''}
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then
  local what = kind == 'none' and 'not there' or 'a ' .. kind
  return {'refused', '`' .. KEYS[1] .. '` is ' .. what .. '; start a worker of the queue, which creates it'}
end
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 4))
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1][1]
redis.call('HSET', KEYS[3], ARGV[1], string.format('%s %.0f %d %s', ARGV[2], now, times + 1, last))
redis.call('XDEL', KEYS[2], ARGV[3])
return {'added', ''}
",
);

/// Sends a job of BullMQ back as its own `retry` does. KEYS: failed, job, wait, prioritized, counter of priorities, marker,
/// meta, events, notes. ARGV: letter, operation, id of the job, its score. What is not known of a queue is refused. The first
/// write is that into the queue.
pub(super) static BULLMQ: Script = Script::new(
    r"
local there = redis.call('HGET', KEYS[9], ARGV[1])
local by, times = '', 0
if there then
  local who, before = there:match('^(%S+) %S+ (%d+)$')
  by, times = who or '', tonumber(before) or 0
end
if redis.call('ZSCORE', KEYS[1], ARGV[3]) ~= ARGV[4] then
  if by == ARGV[2] then return {'added', ''} end
  return {there and 'sent' or 'gone', ''}
end
local instead = '; use `job.retry()` of BullMQ'
local kinds = {'zset', 'hash', 'list', 'zset', 'string', 'zset', 'hash', 'stream', 'hash'}
for at, wanted in ipairs(kinds) do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= wanted and kind ~= 'none' then
    return {'refused', '`' .. KEYS[at] .. '` is a ' .. kind .. ' and no ' .. wanted .. '; somebody else uses the key'}
  end
end
local job = redis.call('HMGET', KEYS[2], 'name', 'opts', 'priority', 'parentKey', 'parent', 'deid')
if not job[1] then return {'refused', 'its job has gone'} end
if job[4] or job[5] then return {'refused', 'the job is a child of another' .. instead} end
if job[6] then return {'refused', 'the job is deduplicated' .. instead} end
local meta = redis.call('HMGET', KEYS[7], 'version', 'paused', 'concurrency', 'opts.maxLenEvents')
if not (meta[1] or ''):match('^bullmq:6%.') then
  return {'refused', 'the queue does not say that BullMQ 6 has written it' .. instead}
end
if meta[3] then return {'refused', 'the queue has a limit of its own' .. instead} end
local priority = tonumber(job[3] or '0') or 0
local ok, opts = pcall(cjson.decode, job[2] or '{}')
if not ok or type(opts) ~= 'table' then return {'refused', 'the options of the job cannot be read' .. instead} end
local max = (meta[4] or ''):match('^%d+$') and meta[4] or '10000'
if priority > 0 then
  local count = redis.call('INCR', KEYS[5])
  redis.call('ZADD', KEYS[4], string.format('%.0f', priority * 4294967296 + count % 4294967296), ARGV[3])
elseif opts.lifo then
  redis.call('RPUSH', KEYS[3], ARGV[3])
else
  redis.call('LPUSH', KEYS[3], ARGV[3])
end
if not meta[2] then redis.call('ZADD', KEYS[6], '0', '0') end
redis.call('XADD', KEYS[8], 'MAXLEN', '~', max, '*', 'event', 'waiting', 'jobId', ARGV[3], 'prev', 'failed')
local t = redis.call('TIME')
redis.call('HSET', KEYS[9], ARGV[1], string.format('%s %.0f %d', ARGV[2], t[1] * 1000 + math.floor(t[2] / 1000), times + 1))
redis.call('HDEL', KEYS[2], 'finishedOn', 'processedOn', 'failedReason')
redis.call('ZREM', KEYS[1], ARGV[3])
return {'added', ''}
",
);

/// Sends a message of dramatiq back as its broker enqueues it, with the same bytes. KEYS: dead set, dead messages, queue,
/// messages, notes. ARGV: letter, operation, id of the message there, its score, name of the queue. The first write is the
/// message, which nobody takes before its id is in the queue.
pub(super) static DRAMATIQ: Script = Script::new(
    r"
local there = redis.call('HGET', KEYS[5], ARGV[1])
local by, times = '', 0
if there then
  local who, before = there:match('^(%S+) %S+ (%d+)$')
  by, times = who or '', tonumber(before) or 0
end
if redis.call('ZSCORE', KEYS[1], ARGV[3]) ~= ARGV[4] then
  if by == ARGV[2] then return {'added', ''} end
  return {there and 'sent' or 'gone', ''}
end
local kinds = {'zset', 'hash', 'list', 'hash', 'hash'}
for at, wanted in ipairs(kinds) do
  local kind = redis.call('TYPE', KEYS[at]).ok
  if kind ~= wanted and kind ~= 'none' then
    return {'refused', '`' .. KEYS[at] .. '` is a ' .. kind .. ' and no ' .. wanted .. '; somebody else uses the key'}
  end
end
local bytes = redis.call('HGET', KEYS[2], ARGV[3])
if not bytes then return {'refused', 'its message has gone'} end
local instead = '; use `broker.enqueue` of dramatiq'
local ok, message = pcall(cjson.decode, bytes)
if not ok or type(message) ~= 'table' or type(message.options) ~= 'table' then
  return {'refused', 'its message cannot be read' .. instead}
end
if message.queue_name ~= ARGV[5] or message.options.redis_message_id ~= ARGV[3] then
  return {'refused', 'its message names another queue or id' .. instead}
end
if redis.call('HEXISTS', KEYS[4], ARGV[3]) == 1 then
  return {'refused', 'a message with its id waits in the queue already; look at `' .. KEYS[4] .. '`'}
end
redis.call('HSET', KEYS[4], ARGV[3], bytes)
redis.call('RPUSH', KEYS[3], ARGV[3])
local t = redis.call('TIME')
redis.call('HSET', KEYS[5], ARGV[1], string.format('%s %.0f %d', ARGV[2], t[1] * 1000 + math.floor(t[2] / 1000), times + 1))
redis.call('ZREM', KEYS[1], ARGV[3])
redis.call('HDEL', KEYS[2], ARGV[3])
return {'added', ''}
",
);
