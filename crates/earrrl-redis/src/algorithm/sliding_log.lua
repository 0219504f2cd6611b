-- Sliding window log: every request of the last window. The slots of the tally are instants.

-- parameters
local window, quota, cost, exact, grain, outweighed, step, lives = unpack('<dddddddd', args, at)

-- judge
local tally = read(key, now)
local born = tally.born
come_back(key, tally, now, tally.newest - now, window, flags)
drop_until(key, tally, now - window, flags)
verdict = tally.sum + cost <= quota and ALLOWED or OVER

-- charge
-- The expiry is renewed once per `step`, which `lives` takes into account.
local moves = tally.newest - tally.newest % step ~= now - now % step
gather(tally, now, exact, grain)
add(key, tally, now, cost)
merge_outweighed(key, tally, quota, outweighed)
write(key, tally, moves and lives)

-- answer
state = summary(key, tally, quota - cost)

-- adjust
-- A request that is taken back without its time is the newest one.
if back then
  when = unnamed and tally.newest or now_at(key, tally, when, exact, grain)
else
  gather(tally, when, exact, grain)
end
-- What is added to a time before the window belongs to the past.
if back or when > now - window then add_past(key, tally, when, cost) end
merge_outweighed(key, tally, quota, outweighed)
if tally.sum > 0 then
  write(key, tally, lives)
elseif tally.there then
  call('DEL', key)
end
