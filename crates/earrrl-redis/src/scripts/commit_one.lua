-- Corrects the charge of a reservation under one rule: commit.lua without closures and with few tables,
-- which cost Redis more than the rest. KEYS, ARGV and the answer are those of commit.lua.

local DONE, REPEATED, UNKNOWN = '0', '1', '2'
local time, now, remembered = '', unpack('<dd', ARGV[1])
local key, given_key, args, at, verdict, state = KEYS[2], KEYS[3], ARGV[2], 3
local refunds
local alone, alone_rest, new_at, without_redis, unnamed, twice, lost = 0, 0, 0, false, false, false, 0
local _, mode = unpack('<BB', args)
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
end
--[[ fetch ]]
local hold, status, expires, since, kept, size, from, made = call('GET', KEYS[1]) or '', '', 0, 0
if #hold > 19 then status, expires, since, _, kept, size, from = unpack('<c1ddBBB', hold) end
if kept == 1 and size >= 4 then made, from = unpack('<I4', hold, from) end
local code = status == 'C' and REPEATED or UNKNOWN
if status == 'L' and now < expires then code = DONE end
local flags, back, when = code == DONE and 1 or 0, mode % 2 == 1, mode % 8 >= 4 and now or since
--[[ parameters ]]
--[[ once ]]
--[[ judge ]]
if code == DONE then
  call('SET', KEYS[1], 'C' .. string.sub(hold, 2) .. string.sub(ARGV[1], 17), 'PX', remembered)
  -- Nothing is given back to a record that was made after the reservation, by a reset or an eviction.
  if kept == 1 and mode % 4 >= 2 and (not back or born == made) then
    --[[ held ]]
    --[[ adjust ]]
  end
end
--[[ unit ]]
--[[ answer ]]
return code .. time .. ' ' .. string.char(#state) .. state
