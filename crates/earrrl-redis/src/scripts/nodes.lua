-- Returns the number of live nodes. KEYS[1] is a sorted set of nodes by the millisecond of their
-- last heartbeat. ARGV[1] is the node that sends a heartbeat, ARGV[2] the milliseconds for which a
-- node counts as alive after one.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
-- Removes heartbeats from before the clock was set back.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
