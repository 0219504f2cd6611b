-- Fixed window.
--
-- A window of 0 microseconds stands for a calendar, the periods around the time that the server takes for the present,
-- and one below zero for a window that begins with a client's first request.
--
-- Record: when it was made, the window's index since 1970, the number of a calendar's period or the millisecond with
-- which a window began, and its count. If the clock was set back by at most a tenth of the window, or 5 s, the record
-- may be of the next window, which then counts as the present one. A count of a later time moves to the present window,
-- up to the share of the quota that belongs to the part of the window that has passed. So a client below its limit is
-- not denied, and the rest of the window admits no more than the rest of the quota.

-- parameters
local window, quota, cost, linger, calendar = unpack('<ddddBc0', args, at)

-- once
local present, begun, ended, later = math.floor(now / window)
if window > 0 then
  begun, ended, later = present * window, (present + 1) * window, (present + 2) * window
elseif window < 0 then
  present = math.floor(now / 1000)
  begun, ended, later = present * 1000, present * 1000 - window, present * 1000 - 2 * window
else
  local before, a, b, c, d, e = unpack('<dddddd', calendar)
  present, begun, ended, later = before + 1, b, c, d
  if now < b then present, begun, ended, later = before, a, b, c end
  if now >= c then present, begun, ended, later = before + 2, c, d, e end
end

-- judge
local number, begins, ends = present, begun, ended
local record, count, counted_in, counted = call('GET', key), 0
local born = now % 4294967296
if record and #record == 20 then born, counted_in, counted = unpack('<I4dd', record) end
if not counted or not (counted >= 0 and counted < 1e300) then record, counted_in = nil end
verdict, state = ALLOWED, record or ''
if record then
  local age = now - counted_in * 1000
  if window < 0 and age < -window and age >= math.max(window / 10, -5000000) then
    number, begins, ends = counted_in, counted_in * 1000, counted_in * 1000 - window
  end
  if counted_in == number then
    count = counted
  elseif counted_in == number + 1 and ends - now <= math.min((ends - begins) / 10, 5000000) then
    number, begins, ends, count = counted_in, ends, later, counted
  elseif counted_in > number then
    count = math.min(counted, math.floor(quota * ((now - begins) / (ends - begins))))
    state = count > 0 and pack('<I4dd', born, number, count) or ''
  end
end
--[[ correct ]]
if count + cost > quota then verdict = OVER end

-- correct
if unspent > 0 and born == made and charged_at >= begins and charged_at < ends then
  count = math.max(count - unspent, 0)
end

-- units
k = units(want, (quota - count) / cost)

-- charge
if record and counted_in == number then
  call('SETRANGE', key, '12', pack('<d', count + cost * k))
else
  local lives = math.ceil((ends - now) / 1000) + linger
  call('SET', key, pack('<I4dd', born, number, count + cost * k), 'PX', lives)
end

-- adjust
if window < 0 and counted_in ~= number and when < begins and when > now + window then
  number = math.floor(when / 1000)
  begins, ends = number * 1000, number * 1000 - window
end
local after = math.max(count + cost, 0)
if when >= begins and when < ends then
  if after > 0 then
    local lives = math.ceil((ends - now) / 1000) + linger
    state = pack('<I4dd', born, number, after)
    call('SET', key, state, 'PX', lives)
  elseif record then
    call('DEL', key)
    state = ''
  end
end
