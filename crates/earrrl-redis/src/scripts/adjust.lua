-- Takes a request back (ARGV[1] begins with 1), or adds what was counted elsewhere (with 0).
-- KEYS[1] is the client's record; ARGV[1] goes on with the time, if it is not Redis's, the time of
-- the request, for a bucket the time at which it would be full for that alone, and the parameters,
-- with a cost below zero to take back. Answers the verdict: FOREIGN, or another.

local key, args, at = KEYS[1], ARGV[1], 34
local back, now, when, alone, alone_rest = unpack('<Bdddd', args)
local flags = 0
back = back == 1
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local unnamed = when < 0
if unnamed then when = now end
local verdict, state
--[[ parameters ]]
--[[ judge ]]
if verdict ~= FOREIGN then
  --[[ adjust ]]
end
return verdict
