-- One request under one rule: KEYS[1] its client's record, KEYS[2] the node's receipts, if it wants
-- one; ARGV[1] the time, if it is not Redis's, flags, the latest time, for a receipt its place, its
-- entry and the milliseconds that receipts are to live from now on (0: as they do), and parameters.
-- Answers the verdict, the time, and the state.

local key, time, verdict, state = KEYS[1]
--[[ parameters ]]
if now < 0 then
  time = call('TIME')
  now = time[1] * 1000000 + time[2]
  if now > latest then return PAST .. time[1] .. '.' .. time[2] .. ' ' end
end
--[[ judge ]]
-- Flags: 1 may store, 2 strict.
if flags % 2 == 1 and verdict ~= FOREIGN and (verdict ~= OVER or flags % 4 >= 2) then
  --[[ charge ]]
  if place ~= '' then
    redis.pcall('SETRANGE', KEYS[2], place, entry)
    if keep > 0 then redis.pcall('PEXPIRE', KEYS[2], keep) end
  end
end
--[[ answer ]]
if not time then return verdict .. ' ' .. state end
return verdict .. time[1] .. '.' .. time[2] .. ' ' .. state
