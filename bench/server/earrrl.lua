-- The article's algorithm as a script of two keys: the estimate and its time.
-- KEYS: rate, time. ARGV: lambda, limit.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local rate = tonumber(redis.call('GET', KEYS[1]) or 0)
local time = tonumber(redis.call('GET', KEYS[2]) or now)
local lambda, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
rate = rate * math.exp(-lambda * math.max(now - time, 0))
local allowed = rate <= limit and 1 or 0
redis.call('SET', KEYS[1], rate + lambda, 'EX', 600)
redis.call('SET', KEYS[2], now, 'EX', 600)
return {allowed, tostring(rate)}
