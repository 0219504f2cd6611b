-- The function in commit.lua that corrects a record of one algorithm. Flags: 1 gives back, 2 corrects
-- the charge, 4 as of the present and not of the request, 8 the parameters are those of the reservation.

correct[--[[ number ]]] = function(key, given_key, args, part)
  local _, mode = unpack('<BB', args)
  local corrects, from = false
  if code == DONE then corrects, from = part.kept and mode % 4 >= 2, part.from end
  local back, when = mode % 2 == 1, mode % 8 >= 4 and now or since
  local refunds
  local flags, at, verdict, state = code == DONE and 1 or 0, 3
  local alone, alone_rest, new_at, without_redis, unnamed, twice, lost = 0, 0, 0, false, false, false, 0
  --[[ parameters ]]
  --[[ once ]]
  --[[ judge ]]
  -- Nothing is given back to a record that was made after the reservation, by a reset or an eviction.
  if back and (not part or born ~= part.born) then corrects = false end
  return function()
    if corrects then
      --[[ held ]]
      --[[ adjust ]]
    end
    --[[ unit ]]
    --[[ answer ]]
    return state
  end
end
