-- The part of several.lua that stores a reservation. After the records, KEYS has the reservation's key
-- and for each record the key of what commits give back to a bucket. ARGV[1] ends with the
-- reservation's microseconds, the milliseconds for which it is kept, and a note for the commit.
--
-- A reservation consists of 'L' (live) or 'C' (committed), the times of its expiry and of the request, the
-- number of records, then for each record a byte that is 1 if the request is stored, the length of the
-- details, and the details: when the record was made, and what its algorithm adds; and the note.

local held, number, parts = true, #ARGV - 1, {}
for i = 1, number do
  -- Flags: 4 enforces, 16 is answered as allowed even if it is not.
  local _, flags = unpack('<BB', ARGV[i + 1])
  if verdicts[i] == OVER and flags % 8 >= 4 and flags % 32 < 16 then held = false end
  local kept, details = strict[i] or passes and verdicts[i] ~= OVER, after[i] or ''
  parts[i] = string.char(kept and 1 or 0, #details) .. details
end
if held then
  local note = string.sub(ARGV[1], rest + 16)
  local hold = 'L' .. pack('<ddB', now + lasts, now, number) .. table.concat(parts) .. note
  call('SET', hold_key, hold, 'PX', hold_lives)
end
