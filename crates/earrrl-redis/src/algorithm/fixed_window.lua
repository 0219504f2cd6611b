-- Fixed window.
--
-- Record: when it was made, the window's index since 1970, and its count. If the clock was set back by at most a
-- tenth of the window, or 5 s, the record may be of the next window, which then counts as the present
-- one. A count of a later time moves to the present window, up to the share of the quota that belongs
-- to the part of the window that has passed. So a client below its limit is not denied, and the rest
-- of the window admits no more than the rest of the quota.

-- parameters
local window, quota, cost, linger = unpack('<dddd', args, at)

-- judge
local number = math.floor(now / window)
local record, count, counted_in, counted = call('GET', key), 0
local born = now % 4294967296
if record and #record == 20 then born, counted_in, counted = unpack('<I4dd', record) end
if not counted or not (counted >= 0 and counted < 1e300) then record, counted_in = nil end
verdict, state = ALLOWED, record or ''
if record then
  if counted_in == number
    or counted_in > number and counted_in * window - now <= math.min(window / 10, 5000000) then
    number, count = counted_in, counted
  elseif counted_in > number then
    count = math.min(counted, math.floor(quota * (now % window / window)))
    state = count > 0 and pack('<I4dd', born, number, count) or ''
  end
end
--[[ correct ]]
if count + cost > quota then verdict = OVER end

-- correct
if math.floor(charged_at / window) == number then count = math.max(count - unspent, 0) end

-- units
k = units(want, (quota - count) / cost)

-- charge
if record and counted_in == number then
  call('SETRANGE', key, '12', pack('<d', count + cost * k))
else
  local lives = math.ceil(((number + 1) * window - now) / 1000) + linger
  call('SET', key, pack('<I4dd', born, number, count + cost * k), 'PX', lives)
end

-- adjust
local there = math.floor(when / window)
local after = math.max(count + cost, 0)
if there == number then
  if after > 0 then
    local lives = math.ceil(((number + 1) * window - now) / 1000) + linger
    state = pack('<I4dd', born, number, after)
    call('SET', key, state, 'PX', lives)
  elseif record then
    call('DEL', key)
    state = ''
  end
end
