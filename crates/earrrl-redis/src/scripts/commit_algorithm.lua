-- The correction of a record of one algorithm in commit.lua.

correct[--[[ number ]]] = function(key, given_key, now, args)
  local flags, at, alone, alone_rest, unnamed, verdict, state = 1, 43, 0, 0, false
  local _, back, when, filled, filled_rest, epoch, given = unpack('<BBddddd', args)
  -- A renewal may have moved the places since the caller read the reservation.
  if back == 2 then when = unpack('<d', call('GETRANGE', KEYS[1], epoch, epoch + 7)) end
  back = back > 0
  if when < 0 then when = now end
  --[[ parameters ]]
  --[[ judge ]]
  return verdict, function()
    --[[ held ]]
    --[[ adjust ]]
  end
end
