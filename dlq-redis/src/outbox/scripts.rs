//! Scripts of the outbox. Each looks before it writes, so that running it again changes nothing.

use crate::client::Script;

/// Adds a letter to its stream, once. KEYS: stream, mark. ARGV: time in ms for which the mark is kept, then fields and
/// values. Answers the id of the entry, or `no stream`.
///
/// The first write is that of the letter: a server that is out of memory refuses the whole script then. Both keys have been
/// looked at before, so that nothing can fail between the two writes.
// The mark is read before the stream is looked at: a letter that has arrived stays sent, also where the stream has gone
// since.
pub(super) static SEND: Script = Script::new(
    r"
local there = redis.call('GET', KEYS[2])
if there then return there end
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'stream' then return kind == 'none' and 'no stream' or 'a ' .. kind end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('SET', KEYS[2], id, 'PX', ARGV[1])
return id
",
);

/// Names those commands of the others that the user may not run. KEYS: stream, mark. Answers nothing on version 6.2, which
/// cannot tell.
pub(super) static PERMITTED: Script = Script::new(
    r"
local out = {}
if not redis.acl_check_cmd then return out end
local probes = {
  {'TYPE', KEYS[1]}, {'XADD', KEYS[1], '*', 'a', 'b'}, {'GET', KEYS[2]}, {'SET', KEYS[2], '1', 'PX', '1'},
}
for _, probe in ipairs(probes) do
  if not redis.acl_check_cmd(unpack(probe)) then out[#out + 1] = probe[1] end
end
return out
",
);
