-- Prolongs a live reservation. KEYS[1] is the reservation, followed by the records of concurrent. ARGV[1]
-- contains the time (below zero for Redis's own), and the microseconds and milliseconds as in
-- hold.lua. Each further ARGV has the place in the reservation of the time at which the places of one
-- record were taken, and its parameters. Returns 1, or 0 if the reservation is not live, or its places
-- are gone.

local now, lasts, hold_lives = unpack('<ddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now = parts[1] * 1000000 + parts[2]
end
local head = call('GETRANGE', KEYS[1], '0', '8')
if #head < 9 then return 0 end
local status, expires = unpack('<c1d', head)
if status ~= 'L' or now >= expires then return 0 end

-- Returns the function that moves the places of one record to the present; nil if they are gone.
local function renewal(key, args)
  local flags, at, verdict, state = 1, 9
  local place = unpack('<d', args)
  local when = unpack('<d', call('GETRANGE', KEYS[1], place, place + 7))
  --[[ parameters ]]
  --[[ judge ]]
  if not tally then return end
  local found, there, counted = find(key, tally, when)
  if not found then there, counted = tally.newest, tally.cost end
  if there ~= when or counted < cost then return cost == 0 and function() end or nil end
  return function()
    add_past(key, tally, when, -cost)
    add(key, tally, now, cost)
    if tally.last - tally.oldest > CHUNK + 2 * tally.sum / 1000000000 then squeeze(key, tally) end
    write(key, tally, lives)
    call('SETRANGE', KEYS[1], place, pack('<d', tally.newest))
  end
end

local renewals = {}
for i = 2, #KEYS do
  renewals[i - 1] = renewal(KEYS[i], ARGV[i])
  if not renewals[i - 1] then return 0 end
end
for _, renew in ipairs(renewals) do renew() end
call('SETRANGE', KEYS[1], '1', pack('<d', now + lasts))
call('PEXPIRE', KEYS[1], hold_lives)
return 1
