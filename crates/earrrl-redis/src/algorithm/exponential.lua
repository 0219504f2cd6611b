-- Exponential rate limiting.
--
-- Record: when it was made, the average rate in cost per period, and the time at which it was stored.

-- parameters
local period, most, cost, step, lives, many = unpack('<dddddd', args, at)

-- judge
local record, rate, last, stored = call('GET', key), cost
local born = now % 4294967296
if record and #record == 20 then born, last, stored = unpack('<I4dd', record) end
if not last or not (last >= 0 and last < 1e300) then record = nil end
verdict, state = ALLOWED, record or ''
if record then
  if stored > now then
    -- The clock was set back, so the record is moved to the present time.
    stored, record = now, pack('<I4dd', born, last, now)
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
if record and rate <= many and stored - stored % step == now - now % step then
  call('SETRANGE', key, '0', pack('<I4dd', born, rate, now))
else
  local more = rate > many and period * math.log(rate / many) / 1000 or 0
  call('SET', key, pack('<I4dd', born, rate, now), 'PX', math.ceil(lives + more))
end

-- adjust
if record then
  local after = last + cost * math.exp(math.min(when - stored, 0) / period)
  if after > 0 then
    state = pack('<I4dd', born, after, stored)
    call('SET', key, state, 'KEEPTTL')
  else
    call('DEL', key)
    state = ''
  end
end
