-- Counts ordered by time, the oldest first, with their running sum.
--
-- Record: when it was made, the places of the oldest entry and of the end of the entries, the sum, and the
-- newest slot with its cost; then the entries, each a slot and a cost. The newest entry is stored
-- in the header, since most requests touch only that. Dropped entries stay in the record until they
-- outnumber the live ones.

local HEADER, ENTRY, CHUNK, OUTWEIGHED = 36, 16, 16, 32

-- Returns entries, each earlier by `tally.shift` than it is stored.
local function entries(key, tally, place, count)
  local from = HEADER + ENTRY * place
  local chunk = call('GETRANGE', key, from, from + ENTRY * count - 1)
  if tally.shift == 0 then return chunk end
  local moved = {}
  for at = 1, #chunk, ENTRY do
    local slot, cost = unpack('<dd', chunk, at)
    moved[#moved + 1] = pack('<dd', math.max(slot - tally.shift, 0), cost)
  end
  return table.concat(moved)
end

-- Returns the tally of a record; an empty one if there is no record, or no valid one.
local function read(key, now)
  local header = call('GETRANGE', key, '0', HEADER - 1)
  if #header == HEADER then
    local born, oldest, last, sum, newest, cost = unpack('<I4I4I4ddd', header)
    if sum >= 0 and sum < 1e300 and cost >= 0 and cost <= sum then
      return { born = born, oldest = oldest, last = last, sum = sum, newest = newest, cost = cost,
        shift = 0, there = true }
    end
  end
  return { born = now % 4294967296, oldest = 0, last = 0, sum = 0, newest = 0, cost = 0, shift = 0,
    there = header ~= '' }
end

local function header_of(tally)
  return pack('<I4I4I4ddd', tally.born, tally.oldest, tally.last, tally.sum, tally.newest,
    tally.cost)
end

-- Drops the oldest entries as long as `gone(slot, cost)` returns true for them.
local function drop(key, tally, gone)
  while tally.oldest < tally.last do
    local chunk = entries(key, tally, tally.oldest, math.min(CHUNK, tally.last - tally.oldest))
    for place = 1, #chunk, ENTRY do
      local slot, cost = unpack('<dd', chunk, place)
      if not gone(slot, cost) then return end
      tally.oldest, tally.sum = tally.oldest + 1, tally.sum - cost
    end
    if chunk == '' then return end
  end
  tally.sum = tally.cost
end

-- Drops the entries up to `edge`. If these were many, the record is updated even if the request is
-- not stored, so that a client that is denied again and again does not cause the same work each
-- time.
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

-- Stores the live entries at the beginning of the record.
local function compact(key, tally)
  local live = tally.last - tally.oldest
  local kept = live > 0 and entries(key, tally, tally.oldest, live) or ''
  tally.oldest, tally.last, tally.shift = 0, live, 0
  call('SET', key, header_of(tally) .. kept, 'KEEPTTL')
end

-- Moves all entries back by the same amount if the clock was set back: if the newest is farther ahead
-- of now (by `ahead` microseconds) than a tenth of the window, or 5 s. So each expires as long after
-- now as before. The record is updated even if the request is not stored.
local function come_back(key, tally, slot, ahead, window, flags)
  if ahead <= math.min(window / 10, 5000000) then return end
  tally.shift, tally.newest = tally.newest - slot, slot
  if flags % 2 == 1 then compact(key, tally) end
end

-- Stores the live entries that have a cost at the beginning of the record.
local function squeeze(key, tally)
  local kept, stored = {}, entries(key, tally, tally.oldest, tally.last - tally.oldest)
  for at = 1, #stored, ENTRY do
    if unpack('<d', stored, at + 8) > 0 then kept[#kept + 1] = string.sub(stored, at, at + ENTRY - 1) end
  end
  tally.oldest, tally.last, tally.shift = 0, #kept, 0
  call('SET', key, header_of(tally) .. table.concat(kept), 'KEEPTTL')
end

-- Merges the oldest entries in cells of a grid of `grain` if more than OUTWEIGHED of them are
-- outweighed: the entries after them sum to more than `quota`. No decision depends on an outweighed
-- entry, unless newer ones are taken back. So it may be counted at a later time, but must not be
-- dropped. The merged entries are stored at the end of the places that they had.
local function merge_outweighed(key, tally, quota, grain)
  if tally.sum <= quota or tally.last - tally.oldest <= OUTWEIGHED then return end
  local chunk, newer = entries(key, tally, tally.oldest, OUTWEIGHED + 1), tally.sum
  for at = ENTRY / 2 + 1, #chunk, ENTRY do
    newer = newer - unpack('<d', chunk, at)
    if newer <= quota then return end
  end
  local merged, cell, sum = {}, -1, 0
  for at = 1, #chunk, ENTRY do
    local slot, cost = unpack('<dd', chunk, at)
    if slot - slot % grain ~= cell then
      cell, sum = slot - slot % grain, 0
      merged[#merged + 1] = ''
    end
    sum = sum + cost
    merged[#merged] = pack('<dd', slot, sum)
  end
  tally.oldest = tally.oldest + OUTWEIGHED + 1 - #merged
  call('SETRANGE', key, HEADER + ENTRY * tally.oldest, table.concat(merged))
end

-- Adds `cost` to `slot`, or to the newest slot if that is later, since slots must ascend.
local function add(key, tally, slot, cost)
  if tally.sum > 0 and tally.newest < slot then
    call('SETRANGE', key, HEADER + ENTRY * tally.last, pack('<dd', tally.newest, tally.cost))
    tally.last, tally.cost = tally.last + 1, 0
  end
  tally.newest, tally.cost = math.max(tally.newest, slot), tally.cost + cost
  tally.sum = tally.sum + cost
end

-- Stores the tally. If `lives` is given, renews the expiry to that many milliseconds.
local function write(key, tally, lives)
  local live = tally.last - tally.oldest
  if tally.stale or tally.oldest > math.max(CHUNK, live) then
    compact(key, tally)
  else
    call('SETRANGE', key, '0', header_of(tally))
  end
  if lives then call('PEXPIRE', key, lives) end
end

-- Returns the place, slot and cost of the first entry at `slot` or later; nothing if there is none.
local function find(key, tally, slot)
  local low, high = tally.oldest, tally.last
  while low < high do
    local middle = math.floor((low + high) / 2)
    if unpack('<d', entries(key, tally, middle, 1)) < slot then low = middle + 1 else high = middle end
  end
  if low < tally.last then return low, unpack('<dd', entries(key, tally, low, 1)) end
end

-- Returns true if both slots are in the same cell of a grid of `grain`.
local function together(one, other, grain)
  return one - one % grain == other - other % grain
end

-- If there are at least `exact` entries, moves the newest entry forward to `slot` if both are in
-- the same cell of the grid. A cost that is then added at `slot` joins this entry.
local function gather(tally, slot, exact, grain)
  local entries = tally.sum > 0 and tally.last - tally.oldest + 1 or 0
  if entries >= exact and tally.newest < slot and together(tally.newest, slot, grain) then
    tally.newest = slot
  end
end

-- Returns the slot of the entry that now contains the cost once added to `slot`, which `gather` may
-- have moved. Never the oldest entry: the entries before it were dropped, perhaps that of `slot`
-- too.
local function now_at(key, tally, slot, exact, grain)
  if tally.last - tally.oldest + 1 < exact then return slot end
  local place, there = find(key, tally, slot)
  place, there = place or tally.last, there or tally.newest
  local moved = there > slot and place > tally.oldest and together(there, slot, grain)
  return moved and there or slot
end

-- Replaces the newest entry by the one before it while the newest has no cost.
local function pop_empty(key, tally)
  while tally.cost == 0 and tally.last > tally.oldest do
    tally.last = tally.last - 1
    tally.newest, tally.cost = unpack('<dd', entries(key, tally, tally.last, 1))
  end
end

-- Adds `cost` (below zero to take it back) to the entry of `slot`. If there is no such entry, the
-- next later one gets the cost, and nothing is taken back.
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

-- Returns the slot that must expire, with all slots before it, for the sum to be at most `room`,
-- and the cost up to it. Tries the newest entry first.
local function slot_to_leave(key, tally, room)
  local left = tally.sum
  if room < tally.cost or left <= room then return tally.newest, left end
  local place = tally.oldest
  while place < tally.last do
    local chunk = entries(key, tally, place, math.min(CHUNK, tally.last - place))
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

-- Returns the figures that an answer needs: the slot that must expire and the cost up to it, the
-- newest slot, the remaining cost, and when the record was made.
local function summary(key, tally, room)
  if tally.sum == 0 then return '' end
  local slot, cost = slot_to_leave(key, tally, room)
  return pack('<ddddI4', slot, cost, tally.newest, tally.sum - cost, tally.born)
end
