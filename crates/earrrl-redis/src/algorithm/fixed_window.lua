-- Fixed window.
--
-- Record: the tag, the window's index since 1970, and its count. If the clock was set back a
-- little, the record may be of the next window, which then counts as the present one. Records of
-- later windows are ignored.

-- parameters
local tag, window, quota, cost, linger = unpack('<I4dddd', args, at)

-- judge
local number = math.floor(now / window)
local record, count, counted_in, counted = call('GET', key), 0
verdict, state = ALLOWED, record or ''
if record then
  local known
  if #record == 20 then known, counted_in, counted = unpack('<I4dd', record) end
  if known ~= tag then
    verdict = FOREIGN
  elseif counted_in == number or counted_in == number + 1 then
    number, count = counted_in, counted
  elseif counted_in > number then
    state = ''
  end
end
if verdict ~= FOREIGN and count + cost > quota then verdict = OVER end

-- charge
if record and counted_in == number then
  call('SETRANGE', key, '12', pack('<d', count + cost))
else
  local lives = math.ceil(((number + 1) * window - now) / 1000) + linger
  call('SET', key, pack('<I4dd', tag, number, count + cost), 'PX', lives)
end

-- adjust
local there = math.floor(when / window)
local after = math.max(count + cost, 0)
if there == number then
  if after > 0 then
    local lives = math.ceil(((number + 1) * window - now) / 1000) + linger
    call('SET', key, pack('<I4dd', tag, number, after), 'PX', lives)
  elseif record then
    call('DEL', key)
  end
end

-- spare
spare = quota - count
