-- A part of the index, in order, with those of its letters that pass the tests. Looks at a bounded number of members, and
-- returns where to go on: {last member or false, number found, letters}.
-- ARGV: prefix, part of the index, lower and upper bound, '1' for reverse, members to look at, letters wanted, bytes wanted,
-- '0' to count, '1' for heads, '2' for whole letters; then tests: number of parts, parts. A letter must be in one of each.
local I = P .. ':i'
local skip, scan, want, most = #ARGV[2], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local mode, tests, at = ARGV[9], {}, 10
while at <= #ARGV do
  local n, test = tonumber(ARGV[at]), {}
  for j = 1, n do test[j] = ARGV[at + j] end
  tests[#tests + 1] = test
  at = at + n + 1
end
local found
if ARGV[5] == '1' then
  found = redis.call('ZREVRANGEBYLEX', I, ARGV[4], ARGV[3], 'LIMIT', 0, scan)
else
  found = redis.call('ZRANGEBYLEX', I, ARGV[3], ARGV[4], 'LIMIT', 0, scan)
end
local out, n, bytes, more = {}, 0, 0, #found == scan
local last = found[#found]
for _, member in ipairs(found) do
  local place = string.sub(member, skip + 1)
  local passes = true
  for _, test in ipairs(tests) do
    passes = false
    for _, part in ipairs(test) do
      if redis.call('ZSCORE', I, part .. place) then
        passes = true
        break
      end
    end
    if not passes then break end
  end
  if passes then
    n = n + 1
    if mode ~= '0' then
      local it = letter(string.sub(place, 9), mode == '2')
      if it then
        out[#out + 1] = it
        if mode == '2' then bytes = bytes + #(it[10] or '') + #(it[11] or '') + #(it[13] or '') end
      end
    end
    if n >= want or bytes >= most then
      last = member
      more = true
      break
    end
  end
end
return {more and last or false, n, out}
