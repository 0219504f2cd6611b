-- Tells how many nodes there are: KEYS[1] has when each was last heard of, in milliseconds. ARGV[1] is a
-- node, ARGV[2] the milliseconds for which one that is not heard of counts.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
-- Of a clock that has gone back since.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
