-- The part of a reservation's script that finds a reservation of the same id, which the caller chose: another
-- call has made it meanwhile.

local made = call('GET', hold_key)
if made and #made > 16 then
  local status, expires = unpack('<c1d', made)
  if status == 'C' or now < expires then return time .. ' ' .. EXPIRED .. '\0' end
end
