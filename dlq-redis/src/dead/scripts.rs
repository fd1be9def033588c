//! Scripts by which a stream of dead letters is followed, and letters are sent back. Each is repeated without harm after its answer was lost.

use crate::client::Script;

/// Marks the store of a follower. KEYS: mark, names of followers. ARGV: name, store. Answers the store that the mark names,
/// and the place up to which entries were confirmed.
pub(super) static MARK: Script = Script::new(
    r"
local store = redis.call('HGET', KEYS[1], 'store')
if not store then
  redis.call('SADD', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[1], 'store', ARGV[2], 'count', 0)
  store = ARGV[2]
end
return {store, redis.call('HGET', KEYS[1], 'place')}
",
);

/// Takes entries. KEYS: mark, replays that run. ARGV: who takes them, lease in ms, store, the place up to which entries were confirmed, the
/// last place that is taken. Answers 1 and the last place that was ever taken, 0 where others were confirmed since, -1 and
/// the rest of a lease of somebody else, -3 and the rest of that of a replay, or -2 where the mark has gone.
// Ids are compared as text, since both halves may be greater than the 2^53 up to which numbers of Lua are exact. A replay
// in flight is waited for: the ledger has what it sends before entries are yielded.
pub(super) static TAKE: Script = Script::new(
    r"
local function beyond(a, b)
  local am, an = a:match('^(%d+)-(%d+)$')
  local bm, bn = b:match('^(%d+)-(%d+)$')
  if am ~= bm then
    if #am ~= #bm then return #am > #bm end
    return am > bm
  end
  if #an ~= #bn then return #an > #bn end
  return an > bn
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local v = redis.call('HMGET', KEYS[1], 'store', 'place', 'taken', 'owner', 'until')
if v[1] ~= ARGV[3] then return {-2, 0} end
if (v[2] or '') ~= ARGV[4] then return {0, 0} end
if v[4] and v[4] ~= ARGV[1] and tonumber(v[5]) > now then return {-1, tonumber(v[5]) - now} end
local replay = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if replay[2] and tonumber(replay[2]) > now then return {-3, tonumber(replay[2]) - now} end
local taken = v[3] or '0-0'
local last = taken
if beyond(ARGV[5], taken) then last = ARGV[5] end
redis.call('HSET', KEYS[1], 'taken', last, 'owner', ARGV[1], 'until', string.format('%.0f', now + ARGV[2]))
return {1, taken}
",
);

/// Confirms entries, and lets others have the next ones. KEYS: mark. ARGV: who has taken them, store, the place after which
/// they stand, the last of them, their number. Answers 1; 0 where another has taken or confirmed some; -2 where the mark has
/// gone.
// A confirmation that is made again after its answer was lost finds its own name in `by`.
pub(super) static CONFIRM: Script = Script::new(
    r"
local v = redis.call('HMGET', KEYS[1], 'store', 'place', 'owner', 'by')
if v[1] ~= ARGV[2] then return -2 end
if v[2] == ARGV[4] and v[4] == ARGV[1] then return 1 end
if (v[2] or '') ~= ARGV[3] or v[3] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'place', ARGV[4], 'by', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'count', ARGV[5])
redis.call('HDEL', KEYS[1], 'owner', 'until')
return 1
",
);

/// Sends a letter back, once. KEYS: stream that it goes to, ledger, names of followers, replays that run. ARGV: death,
/// operation, 1 to send what others have sent, the beginning of the names of marks, the name of this replay, its lease in ms,
/// then fields and values. A replay whose lease has not ended goes on beside a follower, who waits for it. Answers `added` and the id of the
/// entry, `sent` and the operation that has sent it, `kept` and the store that has the letters, or `closed` and what the
/// stream is.
///
/// The first write is that of the letter. All keys have been looked at before, so that nothing can fail between the two.
// The ledger is asked before the followers, so that a repetition is answered `sent` also where a store keeps the letters
// by now (G6).
pub(super) static SEND_BACK: Script = Script::new(
    r"
local there = redis.call('HGET', KEYS[2], ARGV[1])
local times = 0
if there then
  local by, before = there:match('^(%S+) %S+ (%d+)$')
  if ARGV[3] == '0' or by == ARGV[2] then return {'sent', by or ''} end
  times = tonumber(before) or 0
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local mine = redis.call('ZSCORE', KEYS[4], ARGV[5])
if not mine or tonumber(mine) <= now then
  for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    local store = redis.call('HGET', ARGV[4] .. name, 'store')
    if store then return {'kept', store} end
  end
end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return {'closed', kind == 'none' and 'not there' or 'a ' .. kind} end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 7))
redis.call('HSET', KEYS[2], ARGV[1], string.format('%s %.0f %d', ARGV[2], now, times + 1))
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[4], string.format('%.0f', now + ARGV[6]), ARGV[5])
return {'added', id}
",
);
