-- What the other scripts begin with. ARGV[1] is the prefix of all keys; KEYS[1] only names the slot.
local P = ARGV[1]
local HEAD = {'v', 's', 'r', 'b', 'o', 'q'}
local WHOLE = {'v', 's', 'r', 'b', 'o', 'q', 'y', 'e', 'k', 'd'}

-- A letter as an array, with its item and the state of its operation; false if there is none.
local function letter(id, whole)
  local f = redis.call('HMGET', P .. ':l:' .. id, unpack(whole and WHOLE or HEAD))
  if not f[1] then return false end
  local item, state = false, false
  if f[5] then
    local op = P .. ':op:' .. string.sub(f[5], 1, 32)
    item = redis.call('HGET', op .. ':i', string.sub(f[5], 34))
    state = redis.call('HGET', op, 's')
  end
  return {id, item, state, unpack(f)}
end

-- The time of the server as the eight bytes that members of the index have. Doubles hold 53 bits, so that it is computed in
-- two halves.
local function now8()
  local t = redis.call('TIME')
  local s, us = tonumber(t[1]), tonumber(t[2])
  local a, b = math.floor(s / 65536), s % 65536
  local x, y = a * 1000000000, b * 1000000000 + us * 1000
  local low = (x % 65536) * 65536 + y % 4294967296
  local high = math.floor(x / 65536) + math.floor(y / 4294967296) + math.floor(low / 4294967296)
  low = low % 4294967296
  high = high + 2147483648
  local bytes = {}
  for _, half in ipairs({high, low}) do
    for shift = 3, 0, -1 do
      bytes[#bytes + 1] = string.char(math.floor(half / 256 ^ shift) % 256)
    end
  end
  return table.concat(bytes)
end
