-- Exponential rate limiting.
--
-- Record: when it was made, the average rate in cost per period, and the time at which it was stored. The last place
-- in the queue follows in seven bytes, if there is one.

-- parameters
local period, most, cost, step, lives, many, spacing = unpack('<ddddddd', args, at)

-- judge
local record, rate, last, stored = call('GET', key), cost
local born = now % 4294967296
if record and (#record == 20 or #record == 27) then born, last, stored = unpack('<I4dd', record) end
if not last or not (last >= 0 and last < 1e300) then record = nil end
verdict, state = ALLOWED, record or ''
if record then
  if stored > now then
    -- The clock was set back, so the record is moved to the present time.
    stored, record = now, pack('<I4dd', born, last, now) .. string.sub(record, 21)
    state = record
    if flags % 2 == 1 then call('SETRANGE', key, '0', record) end
  end
  local x = math.max((now - stored) / period, 1e-10)
  local left = math.exp(-x)
  -- tanh(x/2)·(1 + e^-x) equals 1 - e^-x, and loses no digits if x is small.
  rate = math.max(math.tanh(x / 2) * (1 + left) * cost / x + left * last, cost)
end
if rate > most then verdict = OVER end

-- charge
local new, denied = pack('<I4dd', born, rate, now), verdict == OVER and flags % 64 >= 32
if denied or record and #record > 20 then
  local function earliest(average, since)
    return since + period * math.max(0, math.log(average / most) + cost / most)
  end
  local before, later = record and earliest(last, stored) or 0, earliest(rate, now)
  local known = record and string.sub(record, 21) or ''
  new = new .. next_place(denied, known, cost, now, before, later, spacing, most, period)
end
if record and rate <= many and stored - stored % step == now - now % step then
  call('SETRANGE', key, '0', new)
else
  local more = rate > many and period * math.log(rate / many) / 1000 or 0
  call('SET', key, new, 'PX', math.ceil(lives + more))
end

-- adjust
if record then
  local after = last + cost * math.exp(math.min(when - stored, 0) / period)
  if after > 0 then
    state = pack('<I4dd', born, after, stored) .. string.sub(record, 21)
    call('SET', key, state, 'KEEPTTL')
  else
    call('DEL', key)
    state = ''
  end
end
