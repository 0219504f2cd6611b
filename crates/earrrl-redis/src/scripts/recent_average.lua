-- Recent average: a decayed count, and the time it had decayed to.
--
-- Record: tag, count, time. Where the clock went back, nothing has decayed, and time goes on from
-- there.

-- judge
local tag, period, most, held, cost, step, lives, many = unpack('<I4ddddddd', args, at)
local record, count, stored = call('GET', key), 0
verdict, state = ALLOWED, record or ''
if record then
  local known
  if #record == 20 then known, count, stored = unpack('<I4dd', record) end
  if known ~= tag then
    verdict = FOREIGN
  else
    if stored < now then count = count * math.exp((stored - now) / period) end
    if count > most then verdict = count <= held and HELD or OVER end
  end
end

-- charge
-- A count of up to `many` is forgotten within `lives` milliseconds, which allows for one `step`: so
-- most writes are in place, and leave the expiry alone.
local after = count + cost
if record and after <= many and stored - stored % step == now - now % step then
  call('SETRANGE', key, '0', pack('<I4dd', tag, after, now))
else
  local more = after > many and period * math.log(after / many) / 1000 or 0
  call('SET', key, pack('<I4dd', tag, after, now), 'PX', math.ceil(lives + more))
end

-- adjust
local after = count + cost * math.exp((math.min(when, now) - now) / period)
if after > count * 1e-12 then
  local more = after > many and period * math.log(after / many) / 1000 or 0
  call('SET', key, pack('<I4dd', tag, after, now), 'PX', math.ceil(lives + more))
else
  call('DEL', key)
end
