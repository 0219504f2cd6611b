-- The function in batch.lua that decides requests by one algorithm. Their records are read together,
-- except those that an earlier request may change. A record that is missing, or that the user may not
-- read that way, is read by itself, which also finds keys of another type.

decide[--[[ number ]]] = function(args, flags, repeats, from, last)
  local at = flags >= 64 and 6 + 22 * (last - from) or 6
  --[[ parameters ]]
  local first, keys = done, keys
  local states = --[[ records ]]
  if repeats > 0 then
    for i = 1, last - first do
      if repeats % 2 == 1 then states[i] = nil end
      repeats = math.floor(repeats / 2)
    end
  end
  records = states
  --[[ once ]]
  -- Requests with a verdict below this one are stored.
  local bound = flags % 2 == 0 and ALLOWED or flags % 4 >= 2 and EXPIRED or OVER
  for i = 1, last - first do
    done = first + i
    local key, found, verdict, state = keys[done], states[i]
    local k, want, unspent, charged_at, made = 1, 1, 0
    if flags >= 64 then
      want, unspent, charged_at, made = unpack('<I2ddI4', args, 6 + 22 * (done - from - 1))
    end
    --[[ judge ]]
    if want > 1 and verdict == ALLOWED then
      --[[ units ]]
    end
    if verdict < bound then
      --[[ charge ]]
    else
      skipped = skipped + 2 ^ (done - 1)
    end
    --[[ answer ]]
    if verdict ~= ALLOWED then
      verdicts = verdicts + verdict * 8 ^ (done - 1)
    end
    if flags >= 64 then state = pack('<I2', k) .. state end
    if state ~= found then states[i] = state end
  end
end
