-- Adds to a client's record what a server has counted by itself, and takes back what was charged there: the
-- changes of one contribution, which are applied once even if they are sent several times.
--
-- KEYS[1] is the client's record, KEYS[2] the numbers of the last contributions, KEYS[3] what was given back to a
-- bucket. ARGV[1] contains the server's
-- name, the number of the contribution, the time (below zero for Redis's own), and the server's idea of Redis's
-- time. If that is wrong, the times of the changes are wrong too; nothing is changed, and the answer is EXPIRED.
--
-- Each further ARGV is a change. It begins with a byte: 1 takes back a charge, 2 adds one that the server decided by
-- itself, 3 takes back one that was counted twice, 5 takes back what was charged for units that the server has
-- not spent. The time of the request follows (below zero for now), for a bucket the time at which it would be full
-- after these charges alone, the time at which the client is as good as new according to the server, for units
-- the record that was charged, and the parameters, with a cost below zero to take back.
--
-- The numbers, the oldest first: a server's name, its last number, the second of it, and what a bucket
-- has dropped of its charges. One that is an hour old is forgotten. They live as long as the record, so that
-- a number is known as long as it matters; at least an hour, since an outage may delay the next attempt; and a
-- day for a Redis user that may not call PTTL.

local key, refunds, time = KEYS[1], KEYS[3], ''
local node, number, now, present = unpack('<c8ddd', ARGV[1])
if now < 0 then
  local parts = call('TIME')
  now, time = parts[1] * 1000000 + parts[2], parts[1] .. '.' .. parts[2]
  if math.abs(now - present) > 5000000 then return EXPIRED .. time .. ' ' end
end
local numbers, others, last, lost = call('GET', KEYS[2]) or '', '', 0, 0
local second = math.floor(now / 1000000) % 4294967296
for at = 1, #numbers - 25, 26 do
  local holder, added, since, dropped = unpack('<c8I6I4d', numbers, at)
  if holder == node then
    last, lost = added, dropped
  elseif math.abs(second - since) < 3600 then
    others = others .. string.sub(numbers, at, at + 25)
  end
end
if number <= last then return ALLOWED .. time .. ' ' end

local function apply(args)
  local flags, verdict, state = 1
  local kind, when, alone, alone_rest, new_at, made, at = unpack('<Bddddd', args)
  local back, without_redis, twice, unnamed = kind ~= 2, kind == 2, kind == 3, when < 0
  if unnamed then when = now end
  --[[ parameters ]]
  --[[ once ]]
  --[[ judge ]]
  -- Units of a record that is gone are those of nobody.
  if kind == 5 and born ~= made then return end
  --[[ adjust ]]
end
for place = 2, #ARGV do apply(ARGV[place]) end

local lives = redis.pcall('PTTL', key)
lives = type(lives) == 'number' and math.max(lives, 3600000) or 86400000
call('SET', KEYS[2], string.sub(others, -26 * 127) .. pack('<c8I6I4d', node, number, second, lost), 'PX', lives)
return ALLOWED .. time .. ' '
