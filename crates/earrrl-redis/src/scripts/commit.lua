-- Corrects the charges of a reservation to the actual costs, once. KEYS[1] is the reservation, followed
-- by each record and the key of what commits give back to a bucket. ARGV[1] contains the time (below
-- zero for Redis's own) and the milliseconds for which the commit is remembered. Each further ARGV
-- corrects one record: its algorithm, 1 to give back or 0 to charge more, the time of the request
-- (below zero for the present; with 2 instead of 1, the reservation has the time at the place that
-- what was given back is otherwise), for a bucket the time at which it would be full after the request in
-- two words and what was given back until then, and the parameters with the difference of the costs.
--
-- Returns DONE, REPEATED, UNKNOWN, or FOREIGN (then nothing is changed), the number of the record, and
-- the time.

local DONE, REPEATED, UNKNOWN = '0', '1', '2'
local time, now, remembered = '', unpack('<dd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
end
local function answer(code, place) return code .. string.char(place) .. time .. ' ' end

local correct = {}
--[[ algorithms ]]

local head = call('GETRANGE', KEYS[1], '0', '8')
if #head < 9 then return answer(UNKNOWN, 0) end
local status, expires = unpack('<c1d', head)
if status == 'C' then return answer(REPEATED, 0) end
if now >= expires then return answer(UNKNOWN, 0) end
local corrections = {}
for place = 2, #ARGV do
  local verdict, apply = correct[string.byte(ARGV[place])](KEYS[2 * place - 2],
    KEYS[2 * place - 1], now, ARGV[place])
  if verdict == FOREIGN then return answer(FOREIGN, place - 2) end
  corrections[place - 1] = apply
end
call('SETRANGE', KEYS[1], '0', 'C')
call('PEXPIRE', KEYS[1], remembered)
for _, apply in ipairs(corrections) do apply() end
return answer(DONE, 0)
