-- Decides one request under one rule, and reserves it: several.lua with hold.lua, without closures and
-- with few tables, which cost Redis more than the rest. KEYS[1] is the record, followed by the reservation,
-- the key of what commits give back to a bucket, and the key of the receipts. ARGV and the answer are
-- those of several.lua.

local now, prolongs, latest, entry, place, lasts, hold_lives = unpack('<dBdc4Bc0dd', ARGV[1])
local key, hold_key, given_key, args, at, time, details, verdict, state = KEYS[1], KEYS[2], KEYS[3], ARGV[2], 3, '', ''
local _, flags = unpack('<BB', args)
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if now > latest then return time .. ' ' .. EXPIRED .. '\0' end
end
--[[ fetch ]]
--[[ known ]]
--[[ parameters ]]
--[[ once ]]
--[[ judge ]]
local kept = verdict ~= OVER or flags % 4 >= 2
if kept and flags % 2 == 1 then
  --[[ charge ]]
  --[[ details ]]
  details = pack('<I4', born) .. details
  if place ~= '' then
    redis.pcall('SETRANGE', KEYS[4], place, pack('<c4d', entry, now))
    if prolongs >= 8 then redis.pcall('PEXPIRE', KEYS[4], RECEIPTS_LIVE) end
  end
end
--[[ answer ]]
if verdict ~= OVER or flags % 8 < 4 or flags % 32 >= 16 then
  local head = pack('<c1ddBBB', 'L', now + lasts, now, 1, kept and 1 or 0, #details)
  call('SET', hold_key, head .. details .. string.sub(ARGV[1], 39 + #place), 'PX', hold_lives)
end
return time .. ' ' .. verdict .. string.char(#state) .. state
