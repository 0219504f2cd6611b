-- Shared by every script. An algorithm's file has six parts, which the frames (single.lua,
-- several.lua, near.lua) put where they need them; `key`, `now` and `flags` are given.
--   parameters  reads them at `at` of `args`
--   judge       reads the client's record and judges the request. Sets `verdict`, and `state`, from
--               which the caller rebuilds the answer
--   charge      stores the request that was just judged
--   answer      sets `state`, where that is not the record as it was before
--   adjust      takes a request of the time `when` back, or adds one that was counted elsewhere
--   spare       sets `spare`, what the limit has left for the client
-- Times are microseconds since 1970 and amounts billionths of a unit: whole numbers, which doubles
-- hold exactly up to 2^53 (until 2255; nine million units).

local call, pack, unpack = redis.call, struct.pack, struct.unpack

-- Verdicts. HELD is over the limit, but for no longer than the rule's `delay` may hold it. FOREIGN:
-- the record was written under other parameters; the caller converts it and asks again. EXPIRED: the
-- call came after its caller has decided without it, or with a wrong idea of Redis's time.
local ALLOWED, HELD, OVER, FOREIGN, EXPIRED = '0', '1', '2', '3', '4'

-- Milliseconds that a node's receipts live after it was last there: also where the clock is set forward
-- by an hour.
local RECEIPTS_LIVE = '7200000'
