-- Advances a key's time by the amount that the call gives. The time is the theoretical arrival time
-- of GCRA, whose parameters each call brings. KEYS[1] is the record's key. ARGV[1] contains the
-- time (below zero for Redis's own), the amount, the farthest that the new time may be ahead of
-- now, and the lifetime of the record after its time. Returns the time and the record before the
-- call.
--
-- A time consists of whole microseconds and a rest in units of 2^-16 ns. Record: microseconds,
-- rest, and the microsecond at which it was written, which records of earlier versions lack.

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local MICROSECOND = 65536000

local now, by, by_rest, most, most_rest, linger = unpack('<dddddd', ARGV[1])
local time
if now < 0 then
  time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local record, at, rest = call('GET', KEYS[1]), now, 0
if record and (#record == 18 or #record == 11) then
  local stored, stored_rest, written = unpack('<I7I4', record)
  if #record == 18 then written = unpack('<I7', record, 12) end
  if written and written > now then
    -- The clock was set back. The time is as far ahead of it as before.
    stored = math.max(stored - (written - now), 0)
    record = pack('<I7I4I7', stored, stored_rest, now)
    if by > 0 or by_rest > 0 then call('SETRANGE', KEYS[1], '0', record) end
  end
  if stored >= now then at, rest = stored, stored_rest end
end
at, rest = at + by, rest + by_rest
if rest >= MICROSECOND then at, rest = at + 1, rest - MICROSECOND end
local span = at - now
if (by > 0 or by_rest > 0) and (span < most or span == most and rest <= most_rest) then
  call('SET', KEYS[1], pack('<I7I4I7', at, rest, now), 'PX', math.ceil(span / 1000) + linger)
end
time = time and time[1] .. '.' .. time[2] or ''
return time .. ' ' .. (record or '')
