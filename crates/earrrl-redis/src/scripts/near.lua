-- Exchanges a client between a node that decides by itself and Redis. Applies the node's changes to
-- the client's record, and claims a share of what is left of the limit.
--
-- KEYS[1] is the client's record, KEYS[2] the claims of all nodes on it. ARGV[1] contains the node's
-- name, the number of its changes, the headroom that must be free, the headroom that is claimed
-- then, the headroom that the node would use at most, the headroom that it expects to use, the least
-- share for which a claim is made, the number of nodes, the duration of a claim (0: none is made), the
-- time (below zero for Redis's own), the node's idea of Redis's time, the rule's tag, and its parameters
-- with the cost that is judged. Each further ARGV is an adjustment, one of the changes with that number. If the node's idea of Redis's
-- time is wrong, the times of the adjustments are wrong too, and the verdict is EXPIRED.
--
-- An adjustment begins with a byte: 0 adds a charge of the node, 1 takes back a charge that Redis has
-- stored, 2 adds a charge that the node decided while Redis could not be reached. The time of the
-- request follows (below zero for now), for a bucket the time at which it would be full after these
-- charges alone, the time at which the client is as good as new according to the node if it decided without
-- Redis, and the parameters, with a cost below zero to take back.
--
-- Returns the verdict (FOREIGN or another), the time, the share that the node may spend until its
-- claim ends, the number of other nodes that know the client, the part of the required headroom that
-- was missing, the node's part of the expected use of all nodes, and the state.
--
-- Claims, the oldest first: the node's name, the number of its last changes that were applied, the tag
-- of its rule, its share, the headroom that it expects to use (below zero if it makes no claim), and the
-- millisecond of the claim modulo 2^32. Claims that are an hour old are dropped, and those of an earlier
-- process of the same node, whose name begins alike, after a minute: by then it has sent its changes for
-- the last time. Changes with a number that was applied already are
-- not applied again, so a node may send them until it gets an answer. A share under another version of
-- the rule is in another unit and is not counted: while a rule changes, each version admits up to its
-- own limit.

local key, time = KEYS[1], ''
local node, number, need, take, like, wish, least, nodes, lease, now, present, rule =
  unpack('<c8ddddddddddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if math.abs(now - present) > 5000000 then return EXPIRED .. time .. ' ' end
end

-- Judges a request, or applies an adjustment if `add` is true.
local function see(args, at, add)
  local flags, back, when, alone, alone_rest, new_at, spare, without_redis, unnamed, verdict, state = 1, false, now, 0, 0, 0, 0
  if add then
    back, when, alone, alone_rest, new_at = unpack('<Bdddd', args)
    back, without_redis, unnamed = back == 1, back == 2, when < 0
    if unnamed then when = now end
  end
  --[[ parameters ]]
  --[[ once ]]
  --[[ judge ]]
  if verdict == FOREIGN then return verdict end
  if add then
    --[[ adjust ]]
    return verdict
  end
  --[[ spare ]]
  --[[ answer ]]
  return verdict, state, spare
end

local others, active, claimed, wishes, last, own_name = '', 0, 0, 0, 0, string.sub(node, 1, 5)
local claims, turn = call('GET', KEYS[2]) or '', 4294967296
local at_ms = math.floor(now / 1000) % turn
for at = 1, #claims - 31, 32 do
  local holder, added, by, share, wished, since = unpack('<c8I6I2dfI4', claims, at)
  local age = (at_ms - since) % turn
  age = math.min(age, turn - age) * 1000
  if holder == node then
    last = added
  elseif age < math.max(string.sub(holder, 1, 5) == own_name and 60000000 or 3600000000, lease) then
    others = others .. string.sub(claims, at, at + 31)
    if wished >= 0 and age < lease then
      active = active + 1
      if by == rule then claimed, wishes = claimed + share, wishes + wished end
    end
  end
end
if number > last then
  for place = 2, #ARGV do
    if see(ARGV[place], 34, true) == FOREIGN then return FOREIGN .. time .. ' ' end
  end
  last = number
end
local verdict, state, spare = see(ARGV[1], 97, false)
if verdict == FOREIGN then return FOREIGN .. time .. ' ' end

-- A node gets what it expects to use, and a little in any case, so that it can begin to use more. If
-- the nodes expect to use more than is left, that is divided by what each expects, unless this call
-- requires more now. The rest stays free for the node that needs it first, and at least half of what
-- is left, as another node's requests may begin at any time. No node claims the last eighth of what is
-- left, or the last request, in advance: nodes that expect too much of a new client would leave nothing
-- for the others.
local free = spare - claimed
wish = math.max(wish, spare / (8 * nodes))
local part = wish > 0 and wish / (wishes + wish) or 1
local most, kept = spare, 0
if nodes > 1 then most, kept = spare / 2, math.max(spare / 8, least) end
local share = math.min(wish, spare * part, most, free - kept)
if share < least then share = 0 end
if free >= need * 0.999999999 then share = math.max(share, math.min(free, like), take) end
-- The claims live as long as the record, so that the number of the last changes is known as long as
-- the changes matter; at least a minute, or an hour without a claim, since an outage may delay the
-- next attempt; and a day for a Redis user that may not call PTTL.
local lives = redis.pcall('PTTL', key)
lives = type(lives) == 'number' and math.max(lives, lease > 0 and 60000 or 3600000) or 86400000
local newest = string.sub(others, -32 * 127)
local own = pack('<c8I6I2dfI4', node, last, rule, share, lease > 0 and wish or -1, at_ms)
call('SET', KEYS[2], newest .. own, 'PX', lives)
return ALLOWED .. time .. ' ' .. pack('<dddd', share, active, math.max(need - free, 0), part) .. state
