-- Counts by time, the oldest first, with their running sum: what logs and sub-windows keep.
--
-- Record: tag, places of the oldest entry and of the one after the last, sum, the newest slot and
-- its cost; then entries of slot and cost. The newest stands in front alone: most requests touch
-- nothing else. Dropped entries stay until they are more than the live ones.

local HEADER, ENTRY, CHUNK = 36, 16, 16

local function entries(key, place, count)
  local from = HEADER + ENTRY * place
  return call('GETRANGE', key, from, from + ENTRY * count - 1)
end

local function read(key, tag)
  local header = call('GETRANGE', key, '0', HEADER - 1)
  if header == '' then
    return { tag = tag, oldest = 0, last = 0, sum = 0, newest = 0, cost = 0 }
  end
  if #header ~= HEADER then return nil end
  local known, oldest, last, sum, newest, cost = unpack('<I4I4I4ddd', header)
  if known ~= tag then return nil end
  return { tag = tag, oldest = oldest, last = last, sum = sum, newest = newest, cost = cost,
    there = true }
end

local function header_of(tally)
  return pack('<I4I4I4ddd', tally.tag, tally.oldest, tally.last, tally.sum, tally.newest,
    tally.cost)
end

-- Drops the oldest entries for as long as `gone` says so of (slot, cost).
local function drop(key, tally, gone)
  while tally.oldest < tally.last do
    local chunk = entries(key, tally.oldest, math.min(CHUNK, tally.last - tally.oldest))
    for place = 1, #chunk, ENTRY do
      local slot, cost = unpack('<dd', chunk, place)
      if not gone(slot, cost) then return end
      tally.oldest, tally.sum = tally.oldest + 1, tally.sum - cost
    end
    if chunk == '' then return end
  end
  tally.sum = tally.cost
end

-- Drops what is not after `edge`. Where that was much, it is written down even if the request will not
-- be stored, so that a client that is denied over and over is not cleaned up after every time.
local function drop_until(key, tally, edge, flags)
  if tally.newest <= edge then
    tally.stale = tally.last > 0
    tally.oldest, tally.last, tally.sum, tally.newest, tally.cost = 0, 0, 0, 0, 0
    return
  end
  local oldest = tally.oldest
  drop(key, tally, function(slot) return slot <= edge end)
  if tally.oldest - oldest > 4 * CHUNK and flags % 2 == 1 then
    call('SETRANGE', key, '0', header_of(tally))
  end
end

-- What is later than `slot` was told by a clock that has gone back since: it counts as of now, and that
-- is written down even if the request will not be stored.
local function come_back(key, tally, slot, flags)
  if tally.newest <= slot then return end
  while tally.last > tally.oldest do
    local there, cost = unpack('<dd', entries(key, tally.last - 1, 1))
    if there < slot then break end
    tally.last, tally.cost = tally.last - 1, tally.cost + cost
  end
  tally.newest = slot
  if flags % 2 == 1 then call('SETRANGE', key, '0', header_of(tally)) end
end

-- Drops the oldest while those after it sum to more than `quota` alone.
local function drop_outweighed(key, tally, quota)
  drop(key, tally, function(_, cost) return tally.sum - cost > quota end)
end

-- Adds to `slot`, or to the newest if that is later: time does not go back.
local function add(key, tally, slot, cost)
  if tally.sum > 0 and tally.newest < slot then
    call('SETRANGE', key, HEADER + ENTRY * tally.last, pack('<dd', tally.newest, tally.cost))
    tally.last, tally.cost = tally.last + 1, 0
  end
  tally.newest, tally.cost = math.max(tally.newest, slot), tally.cost + cost
  tally.sum = tally.sum + cost
end

-- Stores it, and has it live for so many milliseconds from now, if that is said.
local function write(key, tally, lives)
  local live = tally.last - tally.oldest
  if tally.stale or tally.oldest > math.max(CHUNK, live) then
    local kept = live > 0 and entries(key, tally.oldest, live) or ''
    tally.oldest, tally.last = 0, live
    call('SET', key, header_of(tally) .. kept, 'KEEPTTL')
  else
    call('SETRANGE', key, '0', header_of(tally))
  end
  if lives then call('PEXPIRE', key, lives) end
end

-- The first entry with a slot of `slot` or later: its place, slot and cost; nothing if there is none.
local function find(key, tally, slot)
  local low, high = tally.oldest, tally.last
  while low < high do
    local middle = math.floor((low + high) / 2)
    if unpack('<d', entries(key, middle, 1)) < slot then low = middle + 1 else high = middle end
  end
  if low < tally.last then return low, unpack('<dd', entries(key, low, 1)) end
end

-- Whether one cell of a grid of `grain` has both slots.
local function together(one, other, grain)
  return one - one % grain == other - other % grain
end

-- Moves the newest entry to `slot`, where there are `exact` entries and the grid has both in one cell:
-- what is added there next is then part of it.
local function gather(tally, slot, exact, grain)
  local entries = tally.sum > 0 and tally.last - tally.oldest + 1 or 0
  if entries >= exact and tally.newest < slot and together(tally.newest, slot, grain) then
    tally.newest = slot
  end
end

-- The slot of the entry that has what was added to `slot`, where `gather` may have moved it. The oldest
-- entry is not named: what was before it is gone, perhaps that of `slot` too.
local function now_at(key, tally, slot, exact, grain)
  if tally.last - tally.oldest + 1 < exact then return slot end
  local place, there = find(key, tally, slot)
  place, there = place or tally.last, there or tally.newest
  local moved = there > slot and place > tally.oldest and together(there, slot, grain)
  return moved and there or slot
end

-- The newest entry, once it has no cost any more, gives way to the one before.
local function pop_empty(key, tally)
  while tally.cost == 0 and tally.last > tally.oldest do
    tally.last = tally.last - 1
    tally.newest, tally.cost = unpack('<dd', entries(key, tally.last, 1))
  end
end

-- Adds `cost` (taken back where it is below zero) to the entry of `slot`. What is added to a time
-- without an entry goes to the next later one; what is gone is not taken back.
local function add_past(key, tally, slot, cost)
  if slot > tally.newest then
    if cost > 0 then add(key, tally, slot, cost) end
    return
  end
  local place, there, counted = find(key, tally, slot)
  if not place then there, counted = tally.newest, tally.cost end
  if cost < 0 and there ~= slot then return end
  cost = math.max(cost, -counted)
  tally.sum = tally.sum + cost
  if place then
    call('SETRANGE', key, HEADER + ENTRY * place, pack('<dd', there, counted + cost))
  else
    tally.cost = counted + cost
    pop_empty(key, tally)
  end
end

-- The slot whose leaving, with all before it, brings the sum to `room`, and the cost up to it;
-- found from the side that is nearer.
local function slot_to_leave(key, tally, room)
  local left = tally.sum
  if room < tally.cost or left <= room then return tally.newest, left end
  local place = tally.oldest
  while place < tally.last do
    local chunk = entries(key, place, math.min(CHUNK, tally.last - place))
    for at = 1, #chunk, ENTRY do
      local slot, cost = unpack('<dd', chunk, at)
      left = left - cost
      if left <= room then return slot, tally.sum - left end
    end
    if chunk == '' then break end
    place = place + CHUNK
  end
  return tally.newest, tally.sum
end

-- What an answer needs of it: the slot to leave and the cost up to it, the newest slot and the rest.
local function summary(key, tally, room)
  if tally.sum == 0 then return '' end
  local slot, cost = slot_to_leave(key, tally, room)
  return pack('<dddd', slot, cost, tally.newest, tally.sum - cost)
end
