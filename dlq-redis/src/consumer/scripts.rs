//! Scripts of the transport. Each looks before it writes, so that running it again changes nothing.

use crate::client::Script;

/// The pseudo-consumer that owns what was given back or deferred: nobody's lease, and no fence but its own.
pub(crate) const NOBODY: &str = "dlq:deferred";

/// Acknowledges entries whose letter or retry record the server has. KEYS: stream, then the key that must exist for each
/// entry. ARGV: group, then the id of each. Answers for each: 1 acknowledged, 0 the server has no such key.
// The look and the acknowledgement are one step: a master that has forgotten the record in a fail-over leaves the message
// pending (G1). A second `XACK` of an entry changes nothing.
pub(crate) static ACK_WRITTEN: Script = Script::new(
    r"
local out = {}
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    out[i - 1] = 1
  else
    out[i - 1] = 0
  end
end
return out
",
);

/// Renews leases. KEYS: stream. ARGV: group, consumer, then id and counter of each. Answers for each: 1 renewed, 2 renewed
/// but the entry was deleted meanwhile, 0 lost.
///
/// `XCLAIM` does not ask for the owner, so it is looked up first, with the counter: both together are the fence.
// `JUSTID` sets the idle time back and leaves the counter alone; a plain `XCLAIM` would count a delivery that nobody
// made.
pub(crate) static EXTEND: Script = Script::new(
    r"
local out = {}
for i = 3, #ARGV, 2 do
  local p = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if p[1] and p[1][2] == ARGV[2] and tostring(p[1][4]) == ARGV[i + 1] then
    local c = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    out[#out + 1] = c[1] and 1 or 2
  else
    out[#out + 1] = 0
  end
end
return out
",
);

/// Gives an entry back. KEYS: stream, deferred entries. ARGV: group, consumer, nobody, lease in ms, then id, counter and
/// delay in ms of each. Answers for each: 1 given back, 0 lost.
///
/// The delivery is taken back from the counter. Up to the length of a lease the delay is an idle time that is set; a longer
/// one is written to the set of deferred entries first, which reclaiming asks.
// `ZADD` comes before `XCLAIM`: where it fails, the entry has not changed hands, and comes again when its lease ends. The
// time is cut to whole milliseconds, so 1 is added, and nothing comes early.
pub(crate) static GIVE_BACK: Script = Script::new(
    r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local lease = tonumber(ARGV[4])
local out = {}
for i = 5, #ARGV, 3 do
  local p = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if p[1] and p[1][2] == ARGV[2] and tostring(p[1][4]) == ARGV[i + 1] then
    local delay = tonumber(ARGV[i + 2])
    local idle = lease - delay
    if idle < 0 then
      redis.call('ZADD', KEYS[2], now + delay + 1, ARGV[i])
      idle = 0
    end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'IDLE', idle, 'RETRYCOUNT', p[1][4] - 1, 'JUSTID')
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
",
);

/// Takes over entries whose lease has ended. KEYS: stream, deferred entries. ARGV: group, consumer, nobody, lease in ms,
/// cursor, most. Answers: next cursor, entries as id, counter and fields, ids that were deleted while pending.
///
/// By `JUSTID` first, since only that tells the ids of deleted entries on 6.2.
// `JUSTID` counts nothing, so the takeover is counted by `RETRYCOUNT`: a counter beyond 1 is what raises the suspicion of
// a crash (G3). What is gone is acknowledged, since 6.2 keeps it pending for ever.
pub(crate) static RECLAIM: Script = Script::new(
    r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local lease = tonumber(ARGV[4])
local r = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5], 'COUNT', ARGV[6], 'JUSTID')
local taken, gone = {}, r[3] or {}
local some_later = #r[2] > 0 and redis.call('EXISTS', KEYS[2]) == 1
for _, id in ipairs(r[2]) do
  local due = some_later and redis.call('ZSCORE', KEYS[2], id)
  if due and tonumber(due) > now then
    local idle = math.max(0, lease - (tonumber(due) - now))
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, id, 'IDLE', math.floor(idle), 'JUSTID')
  else
    if due then redis.call('ZREM', KEYS[2], id) end
    local p = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)
    local n = p[1] and p[1][4] + 1 or 1
    local c = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'RETRYCOUNT', n)
    if c[1] and c[1][2] then
      taken[#taken + 1] = {id, n, c[1][2]}
    else
      redis.call('XACK', KEYS[1], ARGV[1], id)
      gone[#gone + 1] = id
    end
  end
end
return {r[1], taken, gone}
",
);

/// Takes entries that were handed out to a read whose answer was lost. KEYS: stream. ARGV: group, consumer, last id that
/// was received. Answers entries as id, counter and fields. The counter stays: the entries were never seen.
// The limit bounds the time in which the server serves nobody else. Entries beyond it come again when their lease ends.
pub(crate) static RECOVER: Script = Script::new(
    r"
local taken = {}
local p = redis.call('XPENDING', KEYS[1], ARGV[1], '(' .. ARGV[3], '+', 500, ARGV[2])
for _, one in ipairs(p) do
  local c = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, one[1], 'RETRYCOUNT', one[4])
  if c[1] and c[1][2] then
    taken[#taken + 1] = {one[1], one[4], c[1][2]}
  end
end
return taken
",
);

/// Removes names of processes that have died. KEYS: stream. ARGV: group, idle time in ms, prefix. Answers their number.
///
/// `XGROUP DELCONSUMER` drops what a consumer has pending for good, so it is only for those with nothing, which is asked in
/// the same step.
pub(crate) static SWEEP: Script = Script::new(
    r"
local swept = 0
for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local f = {}
  for i = 1, #c, 2 do f[c[i]] = c[i + 1] end
  if f.pending == 0 and f.idle > tonumber(ARGV[2]) and string.sub(f.name, 1, #ARGV[3]) == ARGV[3] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], f.name)
    swept = swept + 1
  end
end
return swept
",
);

/// Writes a retry record. KEYS: record, due set. ARGV: name in the set, wait in ms, then fields and values. Answers 1
/// written, 0 there already.
// Types are looked at before the first write: a script that fails in the middle keeps what it has written. Times are
// rounded up, so that no record comes early.
pub(crate) static WRITE_RECORD: Script = Script::new(
    r"
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'zset' then
  return redis.error_reply('WRONGTYPE the due set is a ' .. kind)
end
local t = redis.call('TIME')
local due = t[1] * 1000 + math.ceil(t[2] / 1000) + tonumber(ARGV[2])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[2], due, ARGV[1])
return 1
",
);

/// Claims records that are due. KEYS: due set. ARGV: prefix of records, lease in ms, most. Answers ms until the next one
/// is due (-1 for none), and records as name, fence, deliveries, body and payload.
///
/// A fence is greater than any before, also after a fail-over that has forgotten some: it is the server's time at least.
// A claim moves the score to the end of the lease, so that the same range finds what is due and what a dead process held.
// A name without a record is dropped, or it would be found again for ever.
pub(crate) static CLAIM_RECORDS: Script = Script::new(
    r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local micros = t[1] * 1000000 + t[2]
local out = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local key = ARGV[1] .. name
  local f = redis.call('HMGET', key, 'f', 'n', 'b', 'p')
  if f[3] then
    local fence = string.format('%.0f', math.max((tonumber(f[1]) or 0) + 1, micros))
    local n = (tonumber(f[2]) or 0) + 1
    redis.call('HSET', key, 'f', fence, 'n', n)
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), name)
    out[#out + 1] = {name, fence, n, f[3], f[4] or ''}
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local wait = -1
if first[2] then wait = math.max(0, math.ceil(tonumber(first[2]) - now)) end
return {wait, out}
",
);

/// Ends claims of records. KEYS: due set. ARGV: prefix of records, window in ms, then name, fence, verb, ms and proof of
/// each. Verbs: `done` removes it (regardless of the fence: the work is done), `later` gives it back, `extend` renews the
/// lease. Where a proof is given, a record is done only if a key of that name exists: the letter or the next record.
/// Answers for each: 1 done, 0 lost.
///
/// What is done leaves its name for a while, so that the same hop written again is no second record.
// Giving back raises the fence, so that the claim that has ended can neither renew nor give back once more, and takes the
// delivery back from the count (G3, G10).
pub(crate) static END_RECORDS: Script = Script::new(
    r"
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local out = {}
for i = 3, #ARGV, 5 do
  local name, verb, proof = ARGV[i], ARGV[i + 2], ARGV[i + 4]
  local key = ARGV[1] .. name
  local f = redis.call('HMGET', key, 'f', 'n', 'b')
  if verb == 'done' and proof ~= '' and redis.call('EXISTS', proof) == 0 then
    out[#out + 1] = 0
  elseif verb == 'done' then
    if f[3] then
      redis.call('ZREM', KEYS[1], name)
      redis.call('DEL', key)
      redis.call('HSET', key, 'f', f[1] or '0')
      redis.call('PEXPIRE', key, ARGV[2])
    end
    out[#out + 1] = 1
  elseif f[3] and f[1] == ARGV[i + 1] then
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i + 3]), name)
    if verb == 'later' then
      redis.call('HSET', key, 'f', string.format('%.0f', tonumber(f[1]) + 1), 'n', math.max(0, tonumber(f[2]) - 1))
    end
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
",
);

/// Marks that a run begins. KEYS: marks. ARGV: token of this run, time in ms for which marks are kept. Answers the number
/// of other marks. The token makes it the same mark when it is written again.
pub(crate) static BEGIN_MARK: Script = Script::new(
    r"
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HLEN', KEYS[1]) - 1
",
);

/// Leaves at most so many marks. KEYS: marks. ARGV: number.
// Only the number of marks is read, so it does not matter which of them go.
pub(crate) static END_MARK: Script = Script::new(
    r"
local surplus = redis.call('HLEN', KEYS[1]) - tonumber(ARGV[1])
if surplus <= 0 then return 0 end
if tonumber(ARGV[1]) == 0 then return redis.call('DEL', KEYS[1]) end
for i, token in ipairs(redis.call('HKEYS', KEYS[1])) do
  if i > surplus then break end
  redis.call('HDEL', KEYS[1], token)
end
return surplus
",
);

/// Names those of these commands that the user may not run within a script. Answers nothing on 6.2, which cannot tell.
pub(crate) static PERMITTED: Script = Script::new(
    r"
local out = {}
if not redis.acl_check_cmd then return out end
local probes = {
  {'XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', KEYS[1], '>'}, {'XACK', KEYS[1], 'g', '0-1'},
  {'XCLAIM', KEYS[1], 'g', 'c', '0', '0-1'}, {'XAUTOCLAIM', KEYS[1], 'g', 'c', '0', '0-0'},
  {'XPENDING', KEYS[1], 'g'}, {'XADD', KEYS[2], '*', 'a', 'b'}, {'XLEN', KEYS[2]},
  {'SET', KEYS[3], '1'}, {'EXISTS', KEYS[3]}, {'TYPE', KEYS[3]}, {'HSET', KEYS[3], 'a', 'b'},
  {'HMGET', KEYS[3], 'a'}, {'HLEN', KEYS[3]}, {'HKEYS', KEYS[3]}, {'HDEL', KEYS[3], 'a'},
  {'DEL', KEYS[3]}, {'PEXPIRE', KEYS[3], '1'}, {'ZADD', KEYS[3], '1', 'a'}, {'ZREM', KEYS[3], 'a'},
  {'ZSCORE', KEYS[3], 'a'}, {'ZRANGE', KEYS[3], '0', '0'},
  {'ZRANGEBYSCORE', KEYS[3], '0', '0'}, {'TIME'},
}
for _, p in ipairs(probes) do
  if not redis.acl_check_cmd(unpack(p)) then out[#out + 1] = p[1] end
end
return out
",
);
