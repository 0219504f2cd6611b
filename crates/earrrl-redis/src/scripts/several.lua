-- One request under several rules, all or nothing: KEYS the records, ARGV[1] the time, if it is not
-- Redis's, and ARGV[2…] a rule's algorithm, flags and parameters each. Answers the time, then a
-- verdict and a state for each.

local now, time = unpack('<d', ARGV[1]), ''
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
end

-- Judges: verdict, charge, answer.
local judge = {}
--[[ algorithms ]]

local verdicts, charges, answers, strict, stores = {}, {}, {}, {}, {}
local passes = true
for place, args in ipairs(ARGV) do
  if place > 1 then
    -- Flags: 1 may store, 2 strict, 4 enforces.
    local algorithm, flags = unpack('<BB', args)
    local i = place - 1
    verdicts[i], charges[i], answers[i] = judge[algorithm](KEYS[i], now, args, 3, flags)
    stores[i], strict[i] = flags % 2 == 1, flags % 4 >= 2
    if verdicts[i] == FOREIGN then return time .. ' ' .. FOREIGN .. string.char(i - 1) end
    if verdicts[i] == OVER and flags % 8 >= 4 then passes = false end
  end
end
local answer = { time .. ' ' }
for i, verdict in ipairs(verdicts) do
  if stores[i] and (strict[i] or passes and verdict ~= OVER) then charges[i]() end
  local state = answers[i]()
  answer[i + 1] = verdict .. string.char(#state) .. state
end
return table.concat(answer)
