-- Two-window sliding counter.
--
-- Record: when it was made, the window's index since 1970, its count, and the count of the window before. If the
-- clock was set back, both counts move as in a fixed window.

-- parameters
local window, quota, cost, linger = unpack('<dddd', args, at)

-- judge
local number = math.floor(now / window)
local record, current, previous, counted_in, counted, before = call('GET', key), 0, 0
local born = now % 4294967296
if record and #record == 28 then born, counted_in, counted, before = unpack('<I4ddd', record) end
-- The comparison below would never end with counts that are no numbers.
if not counted or not (counted >= 0 and counted < 1e300 and before >= 0 and before < 1e300) then
  record, counted_in = nil
end
verdict, state = ALLOWED, record or ''
if record then
  if counted_in == number
    or counted_in > number and counted_in * window - now <= math.min(window / 10, 5000000) then
    number, current, previous = counted_in, counted, before
  elseif counted_in == number - 1 then
    previous = counted
  elseif counted_in > number then
    current = math.min(counted, math.floor(quota * (now % window / window)))
    previous = before
    state = pack('<I4ddd', born, number, current, previous)
  end
end
--[[ correct ]]
-- Compares previous·left with room·window by quotients: first their whole parts, then the
-- reciprocals of their remainders. The comparison is exact, which the products would not be.
local room, left = quota - current - cost, math.min((number + 1) * window - now, window)
local a, b, c, d = previous, window, room, left
if room < 0 then verdict = OVER end
while verdict == ALLOWED do
  local p, q = math.fmod(a, b), math.fmod(c, d)
  local whole, other = (a - p) / b, (c - q) / d
  if whole > other or whole == other and q == 0 and p > 0 then
    verdict = OVER
  elseif whole < other or p == 0 then
    break
  end
  a, b, c, d = d, q, b, p
end

-- correct
if unspent > 0 and born == made and math.floor(charged_at / window) == number then
  current = math.max(current - unspent, 0)
end

-- units
k = units(want, (quota - current - previous * left / window) / cost)

-- charge
if record and counted_in == number then
  call('SETRANGE', key, '12', pack('<d', current + cost * k))
else
  local lives = math.ceil(((number + 2) * window - now) / 1000) + linger
  call('SET', key, pack('<I4ddd', born, number, current + cost * k, previous), 'PX', lives)
end

-- adjust
local age = number - math.floor(when / window)
if age == 0 then current = math.max(current + cost, 0) end
if age == 1 then previous = math.max(previous + cost, 0) end
if current > 0 or previous > 0 then
  local lives = math.ceil(((number + 2) * window - now) / 1000) + linger
  state = pack('<I4ddd', born, number, current, previous)
  call('SET', key, state, 'PX', lives)
elseif record then
  call('DEL', key)
  state = ''
end
