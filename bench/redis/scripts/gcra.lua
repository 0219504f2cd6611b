-- GCRA as the client libraries have it: one key, a decimal time, set with its expiry on every request.
-- ARGV: burst, rate, period, cost.
local burst, rate, period, cost =
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local emission = period / rate
local time = redis.call("TIME")
local now = (time[1] - 1483228800) + time[2] / 1000000
local tat = math.max(tonumber(redis.call("GET", KEYS[1])) or now, now)
local new_tat = tat + emission * cost
local left = now - (new_tat - emission * burst)
if left < 0 then
  return { 0, 0, tostring(-left), tostring(tat - now) }
end
redis.call("SET", KEYS[1], new_tat, "EX", math.ceil(new_tat - now))
return { cost, left / emission, "-1", tostring(new_tat - now) }
