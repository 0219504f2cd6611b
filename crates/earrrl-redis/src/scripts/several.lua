-- Decides one request under several rules, which store it all or none, and reserves it if it is allowed and ARGV[1]
-- has a reservation (see hold.lua). KEYS are the records, and the key of the receipts. ARGV[1] contains the time
-- (below zero for Redis's own), flags, the latest time, and the receipt, as in single.lua; each further ARGV contains a
-- rule's algorithm, flags and parameters. Returns the time, then a verdict and a state for each rule.

local now, prolongs, latest, entry, place, rest = unpack('<dBdc4Bc0', ARGV[1])
local time, holds, hold_key, lasts, hold_lives = '', rest <= #ARGV[1], KEYS[#ARGV]
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if now > latest then return time .. ' ' .. EXPIRED .. '\0' end
end
if holds then
  lasts, hold_lives = unpack('<dd', ARGV[1], rest)
  --[[ known ]]
end

-- Judges: verdict, charge, answer.
local judge = {}
--[[ algorithms ]]

local verdicts, charges, answers, after, strict, stores = {}, {}, {}, {}, {}, {}
local passes = true
for number, args in ipairs(ARGV) do
  if number > 1 then
    -- Flags: 1 may store, 2 strict, 4 enforces, 32 gives a denial a place.
    local algorithm, flags = unpack('<BB', args)
    local i = number - 1
    verdicts[i], charges[i], answers[i] = judge[algorithm](KEYS[i], now, args, 3, flags,
      KEYS[#ARGV + i])
    stores[i], strict[i] = flags % 2 == 1, flags % 4 >= 2
    if verdicts[i] == OVER and flags % 8 >= 4 then passes = false end
  end
end
local answer, stored = { time .. ' ' }, 0
for i, verdict in ipairs(verdicts) do
  if stores[i] and (strict[i] or passes and verdict ~= OVER) then
    after[i] = charges[i]()
    if i <= 16 then stored = stored + 2 ^ (i - 1) end
  end
  local state = answers[i]()
  answer[i + 1] = verdict .. string.char(#state) .. state
end
if holds then
  --[[ store ]]
end
if place ~= '' and stored > 0 then
  local receipts = KEYS[#KEYS]
  redis.pcall('SETRANGE', receipts, place, string.sub(entry, 1, 2) .. pack('<I2d', stored, now))
  if prolongs >= 8 then redis.pcall('PEXPIRE', receipts, RECEIPTS_LIVE) end
end
return table.concat(answer)
