-- The function in batch.lua that decides requests by one algorithm. Most records are read together:
-- flag 16 says that the keys differ. A record that is missing, or that the user may not read that way,
-- is read by itself, which also finds keys of another type.

decide[--[[ number ]]] = function(args, at, flags, last)
  --[[ parameters ]]
  local first, records = done, {}
  if flags >= 16 then records = --[[ records ]] end
  local stores, strict = flags % 2 == 1, flags % 4 >= 2
  while done < last do
    done, own_bit = done + 1, own_bit * 2
    local key, verdict, state = KEYS[done]
    --[[ judge ]]
    if stores and verdict ~= FOREIGN and (verdict ~= OVER or strict) then
      --[[ charge ]]
      stored_bits = stored_bits + own_bit
    end
    --[[ answer ]]
    if verdict == FOREIGN then state = '' end
    if #state ~= length then length, length_byte = #state, string.char(#state) end
    answer[done * 3 - 1], answer[done * 3], answer[done * 3 + 1] = verdict, length_byte, state
  end
end
