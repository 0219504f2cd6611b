-- The part of commit.lua and renew.lua that reads a reservation, whose format hold.lua describes. Sets
-- `hold` to the reservation, `status`, the times of its `expires` and of the request, `since`, and for
-- each record in `parts` if the request is `kept` there, and the place `from` which its details are stored.
-- The status of a reservation that is not there is empty.

local hold, status, expires, since, parts = call('GET', KEYS[1]) or '', '', 0, 0, {}
if #hold > 17 then
  local number, from
  status, expires, since, number, from = unpack('<c1ddB', hold)
  for i = 1, number do
    local kept, length = unpack('<BB', hold, from)
    parts[i] = { kept = kept == 1, born = length >= 4 and unpack('<I4', hold, from + 2), from = from + 6 }
    from = from + 2 + length
  end
end
