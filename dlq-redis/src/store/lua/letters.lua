-- Letters by id. ARGV: prefix, '1' for whole ones, ids.
local out = {}
for i = 3, #ARGV do out[i - 2] = letter(ARGV[i], ARGV[2] == '1') end
return out
