-- Items of an operation along the index, with their letters. Returns {last member or false, {id, index, record, letter}...}.
-- ARGV: prefix, operation, lower and upper bound, items wanted, bytes wanted, '1' for heads, '2' for whole letters.
local I, op = P .. ':i', P .. ':op:' .. ARGV[2]
local want, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local found = redis.call('ZRANGEBYLEX', I, ARGV[3], ARGV[4], 'LIMIT', 0, want)
local out, bytes, last = {}, 0, false
for _, member in ipairs(found) do
  local index = tostring(tonumber(string.sub(member, -36, -17)))
  local id = string.sub(member, -16)
  local it = letter(id, ARGV[7] == '2')
  out[#out + 1] = {id, index, redis.call('HGET', op .. ':i', index), it}
  if it and ARGV[7] == '2' then bytes = bytes + #(it[10] or '') + #(it[11] or '') + #(it[13] or '') end
  last = member
  if bytes >= most then break end
end
return {(#found == want or bytes >= most) and last or false, out}
