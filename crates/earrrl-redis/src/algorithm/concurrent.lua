-- Concurrency limit: the places that live reservations have taken. The slots of the tally are the
-- times at which they were taken or renewed.

-- parameters
local timeout, most, cost, lives = unpack('<dddd', args, at)

-- judge
local tally = read(key, now)
local born = tally.born
come_back(key, tally, now, tally.newest - now, timeout, flags)
drop_until(key, tally, now - timeout, flags)
verdict = tally.sum + cost <= most and ALLOWED or OVER

-- charge
add(key, tally, now, cost)
write(key, tally, lives)

-- answer
state = summary(key, tally, most - cost)

-- details
-- The time at which the places were taken, to which a renewal moves them.
details = pack('<d', now)

-- held
when = unpack('<d', hold, from)

-- adjust
add_past(key, tally, back and unnamed and tally.newest or when, cost)
-- Each place costs a unit, so most of these entries are empty.
if tally.last - tally.oldest > CHUNK + 2 * tally.sum / 1000000000 then squeeze(key, tally) end
if tally.sum > 0 then
  write(key, tally, lives)
elseif tally.there then
  call('DEL', key)
end
