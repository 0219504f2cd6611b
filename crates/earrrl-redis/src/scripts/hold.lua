-- The part of several.lua that stores a reservation. After the records, KEYS has the reservation's key
-- and for each record the key of what commits give back to a bucket. ARGV[1] ends with the
-- reservation's microseconds, the milliseconds for which it is kept, and a note for the commit.
--
-- A reservation consists of 'L' (live) or 'C' (committed), the times of its expiry and of the request, the
-- number of records, then for each record a byte that is 1 if the request is stored, the length of what follows for a
-- bucket (what was given back until then, and the record after the request) or of concurrent (the time at
-- which the places were taken or renewed), and that; and the note.

local held, number, parts = true, #ARGV - 1, {}
for i = 1, number do
  -- Flags: 4 enforces, 8 is a bucket, 16 is answered as allowed even if it is not, 32 is concurrent.
  local _, flags = unpack('<BB', ARGV[i + 1])
  if verdicts[i] == OVER and flags % 8 >= 4 and flags % 32 < 16 then held = false end
  parts[i] = flags
end
if held then
  local lasts, lives = unpack('<dd', ARGV[1], 23 + #place)
  for i, flags in ipairs(parts) do
    local bucket = flags >= 32 and pack('<d', now) or ''
    if flags % 16 >= 8 then
      local key = KEYS[number + 1 + i]
      local given = call('GET', key)
      if not given then
        given = pack('<dd', now, 0)
        call('SET', key, given, 'PX', lives)
      elseif call('PTTL', key) < lives then
        call('PEXPIRE', key, lives)
      end
      bucket = given .. (call('GET', KEYS[i]) or '')
    end
    local kept = (strict[i] or passes and verdicts[i] ~= OVER) and 1 or 0
    parts[i] = string.char(kept, #bucket) .. bucket
  end
  local note = string.sub(ARGV[1], 39 + #place)
  local hold = 'L' .. pack('<ddB', now + lasts, now, number) .. table.concat(parts) .. note
  call('SET', KEYS[number + 1], hold, 'PX', lives)
end
