-- The start of every script. KEYS[1] is the entry; its fields:
-- p  phase: h held, d done, f free
-- f  fence of the last claim, in decimal; compared as text, since Lua's numbers end at 2^53
-- n  name that the last claim gave itself, so that it knows itself again
-- a  attempts that have failed
-- c  claims whose lease ended without a word
-- s  when the phase began, in microseconds
-- u  when the lease ends or the key is forgotten, in microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local entry = redis.pcall('HMGET', KEYS[1], 'p', 'f', 'n', 'a', 'c', 's', 'u')
-- The key is of another type.
if entry.err then return {'foreign'} end
local phase, fence, name, attempts, crashes, since, ends = unpack(entry)
attempts, crashes, ends = tonumber(attempts or 0), tonumber(crashes or 0), tonumber(ends or 0)
local is_known = not phase or phase == 'h' or phase == 'd' or phase == 'f'
if not is_known or not attempts or not crashes or not ends
  or (phase and not (string.match(fence or '', '^%d+$') and string.match(since or '', '^%d+$'))) then
  return {'foreign'}
end
local function whole(number) return string.format('%.0f', number) end
-- The server forgets the entry a while after it may be forgotten.
local function expire(after) redis.call('PEXPIREAT', KEYS[1], whole(math.ceil(after / 1000) + 60000)) end
