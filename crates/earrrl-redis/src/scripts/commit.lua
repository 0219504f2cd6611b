-- Corrects the charges of a reservation to the actual costs, once. KEYS[1] is the reservation, followed
-- by each record and the key of what commits give back to a bucket. ARGV[1] contains the time (below
-- zero for Redis's own), the milliseconds for which the commit is remembered, and the text that is appended
-- to a committed reservation. Each further ARGV corrects one record: its algorithm, flags, and the
-- parameters with the difference of the costs.
--
-- Returns DONE, REPEATED or UNKNOWN, and the time; then the length of each record's state after the
-- commit, and the state.

local DONE, REPEATED, UNKNOWN = '0', '1', '2'
local time, now, remembered = '', unpack('<dd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
end
--[[ hold ]]
local code = status == 'C' and REPEATED or UNKNOWN
if status == 'L' and now < expires then code = DONE end

-- Each function judges the record of one algorithm. It returns a function that corrects the record and
-- returns its state.
local correct = {}
--[[ algorithms ]]

local corrections, answer = {}, { code .. time .. ' ' }
for i = 1, #ARGV - 1 do
  corrections[i] = correct[string.byte(ARGV[i + 1])](KEYS[2 * i], KEYS[2 * i + 1], ARGV[i + 1], parts[i])
end
if code == DONE then
  call('SET', KEYS[1], 'C' .. string.sub(hold, 2) .. string.sub(ARGV[1], 17), 'PX', remembered)
end
for i, apply in ipairs(corrections) do
  local state = apply()
  answer[i + 1] = string.char(#state) .. state
end
return table.concat(answer)
