-- Recent-average rate limiter in one script, for Redis 5 or later and Valkey.
--
--   KEYS[1]   the client's key
--   ARGV[1]   the limit, in requests a second: 0.5
--   ARGV[2]   the half-life of the average, in seconds: 10
--   ARGV[3]   the request's cost; 1 if left out; 0 judges and stores nothing
--   ARGV[4]   `strict` (the default) counts denied requests too, `leaky` only allowed ones
--   ARGV[5]   the time in seconds, for tests and for replaying a log; by default Redis' own clock
--
-- Returns pairs: allowed (1 or 0), rate (the estimate that was compared with the limit, before this
-- request was counted), retry_after (seconds until the same request would pass, "0" if allowed).
--
-- The state of a client is N requests that are taken to have come at one time T. Its rate at a later
-- time t is λ·N·e^(-λ(t-T)), where λ is ln 2 divided by the half-life. So nothing has to run while no
-- request comes.
if #KEYS ~= 1 then return redis.error_reply('ERR one key is needed') end

local function number(index, name, default, least)
  local value = tonumber(ARGV[index] or default)
  if not value or value ~= value or value < least or value > 1e15 then
    error({ err = 'ERR ' .. name .. ': `' .. (ARGV[index] or '') .. '` is no number from ' .. least .. ' to 1e15' })
  end
  return value
end

local function decide()
  local limit = number(1, 'limit', nil, 1e-9)
  local lambda = math.log(2) / number(2, 'half-life', nil, 1e-3)
  local cost = number(3, 'cost', 1, 0)
  local mode = ARGV[4] or 'strict'
  if mode ~= 'strict' and mode ~= 'leaky' then
    error({ err = 'ERR mode: `' .. mode .. '` is neither strict nor leaky' })
  end
  local now = ARGV[5] and number(5, 'time', nil, 0)
  if not now then
    local clock = redis.call('TIME')
    now = clock[1] + clock[2] / 1e6
  end

  -- One hash holds both numbers, so that they cannot expire or be evicted apart. A clock that was set
  -- back lets no time pass.
  local stored = redis.call('HMGET', KEYS[1], 'N', 'T')
  local n, t = tonumber(stored[1] or 0) or 0, tonumber(stored[2] or now) or now
  n = n * math.exp(-lambda * math.max(now - t, 0))
  now = math.max(now, t)

  -- The tolerance lets a limit that is meant as a whole number of requests be one.
  local most = limit / lambda * (1 + 1e-9)
  local allowed = n <= most
  local after = n
  if allowed or mode == 'strict' then after = n + cost end
  if after > n then
    redis.call('HSET', KEYS[1], 'N', string.format('%.17g', after), 'T', string.format('%.17g', now))
    -- The key goes when the count has decayed to a billionth of a request, which decides nothing.
    redis.call('PEXPIRE', KEYS[1], math.max(math.ceil(math.log(after * 1e9) / lambda * 1000), 1))
  end

  local wait = 0
  -- Rounded up to Redis' microseconds, so that whoever waits for it is not denied again.
  if not allowed then wait = math.ceil(math.log(after / most) / lambda * 1e6) / 1e6 end
  return {
    'allowed', allowed and 1 or 0,
    'rate', string.format('%.15g', lambda * n),
    'retry_after', string.format('%.6f', wait),
  }
end

local fine, answer = pcall(decide)
-- Redis below 7 raises the errors of its commands as strings.
if not fine and type(answer) == 'string' then return redis.error_reply(answer) end
return answer
