-- ARGV: name of the claim, lease and how long a key that is not done is kept, both in microseconds.
if phase == 'd' and ends > now then return {'done', since} end
if phase == 'h' and ends > now then
  -- The answer was lost, and it asks again.
  if name == ARGV[1] then return {'new', fence, attempts, crashes} end
  return {'held', whole(ends - now)}
end
if phase == 'h' then crashes = math.min(crashes + 1, 4294967295) end
if phase == 'd' then attempts, crashes = 0, 0 end
local function is_below(a, b) return #a < #b or (#a == #b and a < b) end
local function successor(text)
  local head, digit, nines = string.match(text, '^(%d-)([0-8]?)(9*)$')
  return head .. (digit == '' and '1' or digit + 1) .. string.rep('0', #nines)
end
-- Grows also when the key was forgotten, since time does.
local next = whole(now)
if fence and not is_below(fence, next) then next = successor(fence) end
ends = now + ARGV[2]
redis.call('HSET', KEYS[1], 'p', 'h', 'f', next, 'n', ARGV[1], 'a', whole(attempts), 'c', whole(crashes),
  's', whole(now), 'u', whole(ends))
expire(ends + ARGV[3])
return {'new', next, attempts, crashes}
