-- One request under one rule: KEYS[1] its client's record; ARGV[1] the time, if it is not Redis's,
-- flags, the latest time, and for a receipt its entry, its place and the key; and parameters. Answers
-- the verdict, the time, and the state.

local key, time, verdict, state = KEYS[1]
--[[ parameters ]]
if now < 0 then
  time = call('TIME')
  now = time[1] * 1000000 + time[2]
  if now > latest then return EXPIRED .. time[1] .. '.' .. time[2] .. ' ' end
end
--[[ judge ]]
-- Flags: 1 may store, 2 strict, 8 prolongs the receipts' life.
if flags % 2 == 1 and verdict ~= FOREIGN and (verdict ~= OVER or flags % 4 >= 2) then
  --[[ charge ]]
  if place ~= '' then
    redis.pcall('SETRANGE', receipts, place, entry)
    if flags >= 8 then redis.pcall('PEXPIRE', receipts, RECEIPTS_LIVE) end
  end
end
--[[ answer ]]
if not time then return verdict .. ' ' .. state end
return verdict .. time[1] .. '.' .. time[2] .. ' ' .. state
