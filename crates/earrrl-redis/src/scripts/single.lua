-- One request under one rule: KEYS[1] its client's record, ARGV[1] the time, if it is not Redis's,
-- flags and parameters. Answers the verdict, the time, and the state.

local key, time, verdict, state = KEYS[1]
--[[ parameters ]]
if now < 0 then
  time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
--[[ judge ]]
-- Flags: 1 may store, 2 strict.
if flags % 2 == 1 and verdict ~= FOREIGN and (verdict ~= OVER or flags % 4 >= 2) then
  --[[ charge ]]
end
--[[ answer ]]
if not time then return verdict .. ' ' .. state end
return verdict .. time[1] .. '.' .. time[2] .. ' ' .. state
