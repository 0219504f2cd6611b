-- Decides several requests, each of them under one rule. KEYS are the requests' records, and the key
-- of the receipts. ARGV[1] contains the time (below zero for Redis's own), flags, the latest time, and
-- the receipt, as in single.lua. Each further ARGV contains an algorithm, flags, the number of requests
-- in a row that these apply to, and the parameters. Returns the time, then a verdict and a state for
-- each request. FAILED stands for an error, such as a key of another type: nothing was stored, and the
-- caller sends that request alone.

local FAILED = '5'
local now, prolongs, latest, entry, place = unpack('<dBdc4Bc0', ARGV[1])
local time = ''
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if now > latest then return time .. ' ' .. EXPIRED end
end

-- The number of the request that is decided, its bit in the receipt, and the bits of those stored. The
-- parts of the algorithms have variables of their own, with other names.
local done, own_bit, stored_bits = 0, 0.5, 0
local answer, length, length_byte = { time .. ' ' }, -1, ''

-- Each function decides the requests after `done`, up to `last`.
local decide = {}
--[[ algorithms ]]

for number = 2, #ARGV do
  local args = ARGV[number]
  local algorithm, flags, count = unpack('<BBB', args)
  local last = done + count
  while done < last do
    local before = done
    if not pcall(decide[algorithm], args, 4, flags, last) then
      assert(done > before)
      answer[done * 3 - 1], answer[done * 3], answer[done * 3 + 1] = FAILED, '\0', ''
    end
  end
end
if place ~= '' and stored_bits > 0 then
  local receipts = KEYS[#KEYS]
  redis.pcall('SETRANGE', receipts, place, string.sub(entry, 1, 2) .. pack('<I2d', stored_bits, now))
  if prolongs >= 8 then redis.pcall('PEXPIRE', receipts, RECEIPTS_LIVE) end
end
return table.concat(answer)
