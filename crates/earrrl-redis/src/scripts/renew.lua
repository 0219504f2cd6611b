-- Prolongs a live reservation. KEYS[1] is the reservation. ARGV[1] contains the time (below zero for
-- Redis's own), and the microseconds and milliseconds as in hold.lua. Returns 1, or 0 if it is not live.

local now, lasts, lives = unpack('<ddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now = parts[1] * 1000000 + parts[2]
end
local head = call('GETRANGE', KEYS[1], '0', '8')
if #head < 9 then return 0 end
local status, expires = unpack('<c1d', head)
if status ~= 'L' or now >= expires then return 0 end
call('SETRANGE', KEYS[1], '1', pack('<d', now + lasts))
call('PEXPIRE', KEYS[1], lives)
return 1
