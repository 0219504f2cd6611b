-- The correction of a record of one algorithm in commit.lua.

correct[--[[ number ]]] = function(key, given_key, now, args)
  local flags, at, alone, alone_rest, unnamed, verdict, state = 1, 43, 0, 0, false
  local _, back, when, filled, filled_rest, epoch, given = unpack('<BBddddd', args)
  back = back == 1
  if when < 0 then when = now end
  --[[ parameters ]]
  --[[ judge ]]
  return verdict, function()
    --[[ held ]]
    --[[ adjust ]]
  end
end
