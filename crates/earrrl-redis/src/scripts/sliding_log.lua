-- Sliding window log: every request of the last window. The slots of its tally are instants.

-- parameters
local tag, window, quota, cost, most, lives = unpack('<I4ddddd', args, at)

-- judge
local tally = read(key, tag)
verdict = FOREIGN
if tally then
  drop_until(key, tally, now - window)
  verdict = tally.sum + cost <= quota and ALLOWED or OVER
end

-- charge
add(key, tally, now, cost)
drop_outweighed(key, tally, quota)
merge_oldest(key, tally, most)
write(key, tally, lives)

-- answer
state = tally and summary(key, tally, quota - cost) or ''

-- adjust
add_past(key, tally, when, cost)
drop_outweighed(key, tally, quota)
if tally.sum > 0 then
  write(key, tally, lives)
elseif tally.there then
  call('DEL', key)
end
