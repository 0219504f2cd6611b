-- A node that decides by itself exchanges what it knows of a client. KEYS[1] is the client's record,
-- KEYS[2] what the nodes claim of it. ARGV[1] has the node, the number of what it has counted, how much
-- must be free, what it takes then, what it would like to take, the least that is worth a claim, how
-- many nodes there are, how long a claim holds (0: none is made), the time, if it is not Redis's, what
-- the node takes Redis's time to be, a tag of the rule, and the parameters for the cost that is judged;
-- ARGV[2…] the adjustments that the number stands for. If that time is wrong, so are theirs: EXPIRED.
--
-- An adjustment adds what the node has counted (0), or takes back what Redis has stored (1). After that
-- byte come the time of the request (below 0: now), for a bucket the time at which it would be full for
-- that alone, and the parameters, with a cost below zero to take back.
--
-- Returns the verdict, FOREIGN or another, the time, what the node may spend until the claim ends, how
-- many other nodes know the client, how much was missing of what must be free, and the state.
--
-- Claims, oldest first: a node, the number of the last that was added of it, the tag of its rule, what
-- it may spend, and since when. A share under another version of the rule is in another unit, and is
-- not counted: while a rule changes, each version admits up to its own limit. What has been added is not
-- added again, so a node may send it until that is confirmed.

local key, time = KEYS[1], ''
local node, number, need, take, like, least, nodes, lease, now, present, rule =
  unpack('<c8dddddddddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if math.abs(now - present) > 5000000 then return EXPIRED .. time .. ' ' end
end

-- Judges; `add` adds what the node has counted.
local function see(args, at, add)
  local flags, back, when, alone, alone_rest, spare, unnamed, verdict, state = 1, false, now, 0, 0, 0
  if add then
    back, when, alone, alone_rest = unpack('<Bddd', args)
    back, unnamed = back == 1, when < 0
    if unnamed then when = now end
  end
  --[[ parameters ]]
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

local others, active, claimed, claimants, last = '', 0, 0, 0, 0
local claims = call('GET', KEYS[2]) or ''
for at = 1, #claims - 31, 32 do
  local holder, added, by, share, since = unpack('<c8I6I2dd', claims, at)
  if holder == node then
    last = added
  else
    others = others .. string.sub(claims, at, at + 31)
    if math.abs(now - since) < lease then
      active = active + 1
      if share > 0 and by == rule then claimed, claimants = claimed + share, claimants + 1 end
    end
  end
end
if number > last then
  for place = 2, #ARGV do
    if see(ARGV[place], 26, true) == FOREIGN then return FOREIGN .. time .. ' ' end
  end
  last = number
end
local verdict, state, spare = see(ARGV[1], 89, false)
if verdict == FOREIGN then return FOREIGN .. time .. ' ' end

-- What is free is for the nodes that hold none of it, in equal parts, unless more is asked for now.
local free = spare - claimed
local share = free / math.max(1, nodes - claimants)
if share < least then share = 0 end
if free >= need * 0.999999999 then share = math.max(share, math.min(free, like), take) end
-- As long as the record, so that the last number is known for as long as what was added, but a minute, or
-- without a claim an hour, since an outage may delay the next try; a day for a user who may not ask.
local lives = redis.pcall('PTTL', key)
lives = type(lives) == 'number' and math.max(lives, lease > 0 and 60000 or 3600000) or 86400000
local kept = string.sub(others, -32 * 127)
local own = pack('<c8I6I2dd', node, last, rule, share, lease > 0 and now or 0)
call('SET', KEYS[2], kept .. own, 'PX', lives)
return ALLOWED .. time .. ' ' .. pack('<ddd', share, active, math.max(need - free, 0)) .. state
