-- The beginning of every script. An algorithm's file has up to eleven parts, which are inserted into the
-- frames (single.lua, batch.lua, several.lua, add.lua, hold.lua, commit.lua). `key`, `now` and `flags` are given.
--   parameters  unpacks the rule's parameters from `args` at `at`
--   once        computes what the requests of a batch share, before the first of them
--   judge       reads the client's record and judges the request. Sets `verdict`, `state`, from which the caller
--               computes the figures, and `born`, which tells this record from a later one of the client: a part
--               of the microsecond at which it was made. A record that makes no sense counts as none
--   correct     takes back what the server has not spent of the units that it was granted at `charged_at`, if the record
--               is the one that they were charged to
--   units       sets `k` to the number of requests that the server is granted, of the `want` that it asks for
--   more        adds the units after the first to what is charged
--   charge      stores the request that was just judged
--   answer      sets `state` if it is not the record before the request
--   details     sets `details` to what a reservation stores for `held`, after a charge
--   held        interprets the details of the reservation that is committed: reduces what is given back by
--               what a full bucket has lost, or sets the time of its places
--   adjust      takes back a request of the time `when`, or adds one that a node has counted; sets `state`
--               if it is the record. `without_redis` is true for charges that were decided while Redis could
--               not be reached, and `twice` for a charge that was counted twice
-- Times are microseconds since 1970, and amounts billionths of a unit. Both are whole numbers, which
-- doubles represent exactly up to 2^53 (the year 2255, or nine million units).
--
-- The names of verdicts are replaced by digits: numbers in batch.lua, texts elsewhere. HELD: the request
-- is over the limit, but may be held back until it is allowed. EXPIRED: the call came after its caller has
-- decided without it, or with a wrong idea of Redis's time.

local call, pack, unpack = redis.call, struct.pack, struct.unpack

-- The milliseconds after the last call of a node at which its receipts expire. They survive a clock
-- that is set forward by an hour.
local RECEIPTS_LIVE = '7200000'

-- Returns how many of the units that a server wants it is granted, if so many requests are left: at most a quarter,
-- so that the next server finds some.
local function units(want, left)
  return math.min(want, math.max(1, math.floor(left / 4 + 1e-9)))
end
