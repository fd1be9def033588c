-- Letters that can be claimed, in line order, of several lines. Returns {last place or false, letters, 1 if there may be more}.
-- ARGV: prefix, time or '' for the server's, place after which to begin or '', letters wanted, letters to pass over if there
-- are more, bytes wanted, '2' for whole letters, parts of the index.
local I = P .. ':i'
local now = ARGV[2] == '' and now8() or ARGV[2]
local after, want, over, most = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
-- The order of bytes: that of the language depends on the server's locale.
local function less(one, other)
  for at = 1, #one do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then return a < b end
  end
  return false
end
local places, full = {}, false
for i = 8, #ARGV do
  local line = ARGV[i]
  local from = after == '' and '[' .. line or '(' .. line .. after
  local found = redis.call('ZRANGEBYLEX', I, from, '(' .. line .. now .. string.rep('\255', 26), 'LIMIT', 0, want + over)
  full = full or #found == want + over
  for _, member in ipairs(found) do places[#places + 1] = string.sub(member, #line + 1) end
end
if #ARGV > 8 then table.sort(places, less) end
local from = math.max(0, math.min(over, #places - want))
local out, bytes, last, done = {}, 0, false, from
for i = from + 1, math.min(from + want, #places) do
  local it = letter(string.sub(places[i], 17, 32), ARGV[7] == '2')
  if it then
    out[#out + 1] = it
    if ARGV[7] == '2' then bytes = bytes + #(it[10] or '') + #(it[11] or '') + #(it[13] or '') end
  end
  last, done = places[i], i
  if bytes >= most then break end
end
return {last, out, (full or done < #places) and 1 or 0}
