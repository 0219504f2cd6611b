-- Decides one request under one rule. KEYS[1] is the client's record, KEYS[2] the key of the
-- receipts. ARGV[1] contains the time (below zero for Redis's own), flags, the latest time, the
-- receipt's entry and place, and the rule's parameters. Returns the verdict, the time, and the
-- state.

local key, time, verdict, state = KEYS[1]
--[[ parameters ]]
if now < 0 then
  time = call('TIME')
  now = time[1] * 1000000 + time[2]
  if now > latest then return EXPIRED .. time[1] .. '.' .. time[2] .. ' ' end
end
--[[ once ]]
--[[ judge ]]
-- Flags: 1 may store, 2 strict, 8 renews the expiry of the receipts, 32 gives a denial a place.
if flags % 2 == 1 and (verdict ~= OVER or flags % 4 >= 2) then
  --[[ charge ]]
  if place ~= '' then
    redis.pcall('SETRANGE', KEYS[2], place, pack('<c4d', entry, now))
    if flags % 16 >= 8 then redis.pcall('PEXPIRE', KEYS[2], RECEIPTS_LIVE) end
  end
end
--[[ answer ]]
if not time then return verdict .. ' ' .. state end
return verdict .. time[1] .. '.' .. time[2] .. ' ' .. state
