-- Prolongs a live reservation. KEYS[1] is the reservation, followed by its records. ARGV[1]
-- contains the time (below zero for Redis's own), and the microseconds and milliseconds as in
-- hold.lua. Each further ARGV has the parameters of a record of concurrent, whose places are moved; it is
-- empty for other records. Returns 1, or 0 if the reservation is not live, or its places are gone.

local now, lasts, hold_lives = unpack('<ddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now = parts[1] * 1000000 + parts[2]
end
--[[ hold ]]
if status ~= 'L' or now >= expires then return 0 end

-- Returns the function that moves the places of one record to the present; nil if they are gone.
local function renewal(key, args, part)
  local flags, at, verdict, state = 1, 1
  local when = unpack('<d', hold, part.from)
  --[[ parameters ]]
  --[[ once ]]
  --[[ judge ]]
  local found, there, counted = find(key, tally, when)
  if not found then there, counted = tally.newest, tally.cost end
  if there ~= when or counted < cost then return cost == 0 and function() end or nil end
  return function()
    add_past(key, tally, when, -cost)
    add(key, tally, now, cost)
    if tally.last - tally.oldest > CHUNK + 2 * tally.sum / 1000000000 then squeeze(key, tally) end
    write(key, tally, lives)
    call('SETRANGE', KEYS[1], part.from - 1, pack('<d', tally.newest))
  end
end

local renewals = {}
for i, part in ipairs(parts) do
  if ARGV[i + 1] ~= '' and part.kept then
    local renew = renewal(KEYS[i + 1], ARGV[i + 1], part)
    if not renew then return 0 end
    renewals[#renewals + 1] = renew
  end
end
for _, renew in ipairs(renewals) do renew() end
call('SETRANGE', KEYS[1], '1', pack('<d', now + lasts))
call('PEXPIRE', KEYS[1], hold_lives)
return 1
