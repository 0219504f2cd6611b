-- Recent average: the logarithm of a decayed count, and the time at which the count was stored.
--
-- Record, in 12 bytes so that Redis stores it in its smallest object: when it was made, the time in
-- microseconds modulo 2^40 (twelve days), and ln(count) + 64 in steps of 2^-41. If a record may
-- live longer (`wide`), it has 16 bytes: the time modulo 2^56, and the logarithm as a double. The last
-- place in the queue follows in seven bytes, if there is one. If
-- the clock was set back, the count is not decayed, and the record is moved to the present time,
-- even if the request is not stored.

-- parameters
local period, most, held, cost, step, lives, many, spacing, wide = unpack('<ddddddddB', args, at)

-- once
local layout, size, turn, steps, half = '<I1I5I6', 12, 1099511627776, 2199023255552, 0.5
if wide == 1 then layout, size, turn, steps, half = '<I1I7d', 16, 72057594037927936, 1, 0 end
local instant, into_step, latest_age = now % turn, now % step, turn * 0.9375

-- judge
local record, count, stored, age, power = call('GET', key), 0
local born = now % 256
if record and (#record == size or #record == size + 7) then born, stored, power = unpack(layout, record) else record = nil end
if power and not (power >= 0 and power < 1e300) then record = nil end
verdict, state = ALLOWED, record or ''
if record then
  age = (instant - stored) % turn
  if age > latest_age then
    age, record = 0, pack(layout, born, instant, power) .. string.sub(record, size + 1)
    state = record
    if flags % 2 == 1 then call('SETRANGE', key, '0', record) end
  end
  count = math.exp(power / steps - 64 - age / period)
  --[[ correct ]]
  if count > most then
    -- No client can send that many requests: a change of the clock has made the record invalid.
    if count > 1e16 then count = many end
    verdict = count <= held and HELD or OVER
  end
end

-- correct
-- The units were charged at their value at the end of the server's lease.
if unspent > 0 and born == made then
  count = math.max(count - unspent / 1e9 * math.exp(math.min(charged_at - now, 0) / period), 0)
end

-- units
-- The first unit is spent now. The others may be spent until the end of the server's lease, so each is charged
-- at the value by which it then decays to one. The last of them is within the limit like any request: if what
-- was counted before it is.
local later = math.exp(math.min(0.125, 60000000 / period))
k = units(want, most - count + 1)
k = math.max(1, math.min(k, math.floor(2 + (most - count - 1) / later)))

-- charge
-- A count of up to `many` is dropped after `lives` milliseconds, which include one `step`. So most
-- writes need not change the expiry.
local after = count + cost
--[[ more ]]
if after > 1e27 then after = 1e27 end
local new = pack(layout, born, instant, (math.log(after) + 64) * steps + half)
local denied = verdict == OVER and flags % 64 >= 32
if denied or record and #record > size then
  local before, later = now + period * math.log(count / most), now + period * math.log(after / most)
  local known = record and string.sub(record, size + 1) or ''
  new = new .. next_place(denied, known, cost, now, before, later, spacing, most, period)
end
if record and after <= many and into_step >= age then
  call('SETRANGE', key, '0', new)
else
  local more = after > many and period * math.log(after / many) / 1000 or 0
  call('SET', key, new, 'PX', math.ceil(lives + more))
end

-- more
if k > 1 then after = after + (k - 1) * math.exp(math.min(0.125, 60000000 / period)) end

-- adjust
-- A charge that is taken back leaves the rest at its own time, since the rest may have decayed to
-- almost nothing by now. A billionth of the count is a rounding error.
local time = now
if back and record then
  time, count = now - age, math.exp(power / steps - 64)
end
local after = math.min(count + cost * math.exp((math.min(when, now) - time) / period), 1e27)
if after > count * 1e-11 and after > 1e-27 then
  local more = after > many and period * math.log(after / many) / 1000 or 0
  state = pack(layout, born, time % turn, (math.log(after) + 64) * steps + half)
  if record then state = state .. string.sub(record, size + 1) end
  call('SET', key, state, 'PX', math.ceil(lives + more))
elseif record then
  call('DEL', key)
  state = ''
end
