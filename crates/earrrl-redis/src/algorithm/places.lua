-- The queue of denied requests under strict averages. This is the arithmetic of places.rs, with the same numbers.

-- Returns the end of a record after a request of `cost`, the last place in seven bytes, given the former end. `before`
-- and `after` are the first possible instants before and after the request. The end 0 stands for no place.
local function next_place(denied, known, cost, now, before, after, spacing, most, period)
  local first = math.ceil(after / spacing)
  if known == '' then return pack('<I7', first) end
  local last = unpack('<I7', known)
  local ahead = last - first
  local full = ahead >= 125
  if not denied then
    local over = now >= before and (full or now - before > spacing + 1000000)
    return over and pack('<I7', 0) or known
  end
  if ahead < 0 then return pack('<I7', first) end
  local steps = math.min(math.max(math.floor(cost), 1), 125)
  if before - now > period * math.log(3) then
    local counted = most * (math.exp((after - now) / period) - 1)
    if full or ahead + steps > 1.1 * counted + 2 then return pack('<I7', first + 127) end
  end
  return pack('<I7', full and first or first + math.min(ahead + steps, 125))
end
