-- Hybrid sliding window: counts in sub-windows. The slots of the tally are the sub-windows' indices
-- since 1970.

-- parameters
-- A window of `window` microseconds has `parts` sub-windows. `share` / `width` is parts / window in
-- lowest terms.
local window, parts, share, width, lifetime, quota, cost, lives =
  unpack('<dddddddd', args, at)

-- judge
local function slot_of(time)
  local into = time % window
  return (time - into) / window * parts + math.floor(into * share / width)
end
local slot, tally = slot_of(now), read(key, now)
local born = tally.born
come_back(key, tally, slot, tally.newest / share * width - now, window, flags)
drop_until(key, tally, slot - lifetime, flags)
--[[ correct ]]
verdict = tally.sum + cost <= quota and ALLOWED or OVER

-- correct
-- Only for a request that then passes, since the tally is written at once.
if unspent > 0 and born == made and tally.sum - unspent + cost <= quota then
  add_past(key, tally, slot_of(charged_at), -unspent)
  write(key, tally)
end

-- units
k = units(want, (quota - tally.sum) / cost)

-- charge
-- The expiry is renewed when the newest sub-window changes.
local moves = tally.newest < slot
add(key, tally, slot, cost * k)
write(key, tally, moves and lives)

-- answer
state = summary(key, tally, quota - cost)

-- adjust
-- What is added to a sub-window before the window belongs to the past.
if back or slot_of(when) > slot - lifetime then add_past(key, tally, slot_of(when), cost) end
if tally.sum > 0 then
  write(key, tally, lives)
elseif tally.there then
  call('DEL', key)
end
