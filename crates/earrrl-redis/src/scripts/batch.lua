-- Decides several requests, each of them under one rule. KEYS are the requests' records, and the key
-- of the receipts. ARGV[1] contains the time (below zero for Redis's own), flags, the latest time, and
-- the receipt, as in single.lua. Each further ARGV contains an algorithm, flags, the number of requests
-- in a row that these apply to, those of them whose key an earlier one has (one bit each), with the flag 64 for
-- each request the units that its server wants, and those to take back, and the parameters. Returns Redis's
-- time (below zero if the caller gave a time), the verdicts as a number (three bits each), the lengths of the states (a byte each), and the states; only the time if the call came too
-- late. FAILED stands for an error, such as a key of another type: nothing was stored, and the caller sends
-- that request alone. With the flag 64, a state begins with the number of units that are granted.

local now, prolongs, latest, entry, place = unpack('<dBdc4Bc0', ARGV[1])
local time = -1
if now < 0 then
  local parts = call('TIME')
  now = parts[1] * 1000000 + parts[2]
  time = now
  if now > latest then return pack('<d', now) end
end

-- `done` is the number of the request that is decided, and `skipped` has the bits of those that are not
-- stored. The parts of the algorithms have variables of their own, with other names.
local keys, done, records, verdicts, skipped, lengths, states = KEYS, 0, nil, 0, 0, '', ''

-- Each function decides the requests after `done`, up to `last`, and replaces their `records` by their
-- states.
local decide = {}
--[[ algorithms ]]

for number = 2, #ARGV do
  local args = ARGV[number]
  local algorithm, flags, count, repeats = unpack('<BBBI2', args)
  local last = done + count
  while done < last do
    local before = done
    if not pcall(decide[algorithm], args, flags, repeats, last - count, last) then
      assert(done > before)
      records[done - before], repeats = '', 65535
      verdicts, skipped = verdicts + FAILED * 8 ^ (done - 1), skipped + 2 ^ (done - 1)
    end
    local decided, length = done - before, #records[1]
    local all = table.concat(records, '', 1, decided)
    if #all == length * decided then
      lengths = lengths .. string.rep(string.char(length), decided)
    else
      for i = 1, decided do lengths = lengths .. string.char(#records[i]) end
    end
    states = states .. all
  end
end
local stored = 2 ^ done - 1 - skipped
if place ~= '' and stored > 0 then
  local receipts = keys[#keys]
  redis.pcall('SETRANGE', receipts, place, pack('<c2I2d', entry, stored, now))
  if prolongs >= 8 then redis.pcall('PEXPIRE', receipts, RECEIPTS_LIVE) end
end
return pack('<dI6', time, verdicts) .. lengths .. states
