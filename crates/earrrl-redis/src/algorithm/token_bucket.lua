-- Token bucket, credit pool, gcra: the time at which the pool is full again.
--
-- The time consists of whole microseconds and remaining ticks, `ticks` of which make a microsecond;
-- so do all spans. Both are whole numbers. This is the arithmetic of token_bucket.rs in two words.
--
-- Record, in 12 bytes so that Redis stores it in its smallest object: when it was made, microseconds, and
-- ticks. The record of a debt, which is farther ahead than a judged request can leave it, also has
-- the time at which it was stored.

-- parameters
-- A judged request of any cost leaves the time to full at most `farthest` ahead.
local ticks, full, full_rest, held, held_rest, price, price_rest, farthest, step, linger =
  unpack('<dddddddddd', args, at)

-- judge
local record, at_full, rest, stored, stored_rest, told = call('GET', key), now, 0
local born = now % 256
if record and #record == 12 then
  born, stored, stored_rest = unpack('<I1I7I4', record)
elseif record and #record == 19 then
  born, stored, stored_rest, told = unpack('<I1I7I4I7', record)
else
  record = nil
end
verdict, state = OVER, record or ''
if record then
  if stored >= now then
    -- A time that is farther ahead than possible was stored before the clock was set back, or under a slower
    -- refill. A client waits no longer than for an empty bucket of the present one, apart from its debt.
    local ahead = told and told - now or stored - now - farthest
    if ahead > 0 then
      stored = stored - ahead
      record = pack('<I1I7I4', born, stored, stored_rest) .. (told and pack('<I7', now) or '')
      state = record
      if flags % 2 == 1 then call('SETRANGE', key, '0', record) end
    end
    at_full, rest = stored, stored_rest
  end
end
at_full, rest = at_full + price, rest + price_rest
if rest >= ticks then at_full, rest = at_full + 1, rest - ticks end
local missing = at_full - now
if missing < full or missing == full and rest <= full_rest then
  verdict = ALLOWED
elseif missing < held or missing == held and rest <= held_rest then
  verdict = HELD
end

-- units
-- The server spends no more of them than the bucket cannot have refilled meanwhile.
k = units(want, 1 + (full - missing) / (price + price_rest / ticks))
at_full, rest = at_full + (k - 1) * price, rest + (k - 1) * price_rest
at_full, rest = at_full + math.floor(rest / ticks), rest % ticks

-- charge
-- The expiry is at the end of a `step`, and is renewed only if the pool will be full in a later
-- step.
at_full = math.min(at_full, 9007199254740992)
local cell, new = at_full - at_full % step, pack('<I1I7I4', born, at_full, rest)
if at_full - now > farthest then new = new .. pack('<I7', now) end
if record and #record == #new and stored - stored % step == cell then
  call('SETRANGE', key, '0', new)
else
  call('SET', key, new, 'PX', math.ceil((cell + step - now) / 1000) + linger)
end

-- details
-- What commits give back to the bucket is stored beside the record: the time from which it is summed up,
-- the sum in microseconds, the time until which that is kept, and the sum of refunds. It is kept for longer than this
-- reservation, so that most reservations need not renew it. The reservation gets the time from which, below zero
-- since an earlier version stored it without refunds, both sums, and the record after the request.
local known, began, sum, ends, refunded = call('GET', given_key), now, 0, 0, 0
if known and #known == 32 then began, sum, ends, refunded = unpack('<dddd', known) end
if ends < now + 1000 * hold_lives then
  local given = pack('<dddd', began, sum, now + 2000 * hold_lives, refunded)
  call('SET', given_key, given, 'PX', 2 * hold_lives)
end
details = pack('<ddd', -began, sum, refunded) .. new

-- held
-- A commit gives back the price, less the time for which the bucket may have been full without it.
-- What other commits have given back since the request made it full earlier, but not before the request. A refund
-- comes later, and is lost as far as the bucket would have been full. Nothing is given back if the sums are
-- not known. Under other parameters the bucket may have been full at any time since the request.
if back then
  local epoch, given, before = unpack('<ddd', hold, from)
  local early, early_rest, known, began, sum, ends, refunded = when, 0, call('GET', given_key), 0, 0, 0, 0
  if mode >= 8 then
    early, early_rest = unpack('<I7I4', hold, from + 25)
    early, early_rest = early - price, early_rest - price_rest
    if early_rest < 0 then early, early_rest = early - 1, early_rest + ticks end
  end
  if known and #known == 32 then began, sum, ends, refunded = unpack('<dddd', known) end
  early = early - (sum - given)
  if early < when then early, early_rest = when, 0 end
  early = early - (refunded - before)
  if began ~= -epoch then
    price, price_rest = 0, 0
  elseif early < now then
    price, price_rest = price - (now - early), price_rest + early_rest
    if price_rest >= ticks then price, price_rest = price + 1, price_rest - ticks end
    if price < 0 then price, price_rest = 0, 0 end
  end
  if began == -epoch then
    sum = sum + price + (price_rest > 0 and 1 or 0)
    call('SET', given_key, pack('<dddd', began, sum, ends, refunded), 'KEEPTTL')
  end
else
  alone, alone_rest = now + price, price_rest
end

-- adjust
-- If the charge is taken back, the pool is full earlier by the price. If it is added, the pool is
-- full later by the price, but not before the time at which a pool with only these charges would be
-- full. That time is kept for the time to fill even if it is past, since charges of other nodes at
-- that time are added to it. Charges that were decided while Redis could not be reached came over the
-- whole outage, in which the pool was refilled. If other nodes have charged the record meanwhile, it no
-- longer tells of that refill. Therefore such charges leave the pool at most empty, apart from the debt
-- that they would have made alone. What such charges have dropped is `lost`: a charge that turns out to have
-- been counted twice gives back nothing of it, since its second count was dropped. If there is no record, it
-- has expired, and the charges would be added to a full pool. Then the pool is full no earlier than the node
-- knew.
local full_at, left, kept = stored or 0, stored_rest or 0, back and 0 or full
if back then
  if twice then
    local dropped = math.min(price, lost)
    price, lost = price - dropped, lost - dropped
  end
  -- Live reservations must know that the bucket is full earlier.
  local known = refunds and call('GET', refunds)
  if known and #known == 32 then
    local refunded = unpack('<d', known, 25) + price + (price_rest > 0 and 1 or 0)
    call('SETRANGE', refunds, 24, pack('<d', refunded))
  end
  full_at, left = full_at - price, left - price_rest
  if left < 0 then full_at, left = full_at - 1, left + ticks end
else
  if without_redis and not record and new_at > alone then alone, alone_rest = new_at, 0 end
  local most = math.max(full_at, now + full) + math.max(alone - now - full, 0)
  full_at, left = full_at + price, left + price_rest
  if left >= ticks then full_at, left = full_at + 1, left - ticks end
  if without_redis and full_at > most then
    lost = lost + full_at - most
    full_at, left = most, 0
  end
  if full_at < alone or full_at == alone and left < alone_rest then
    full_at, left = alone, alone_rest
  end
end
full_at = math.min(full_at, 9007199254740992)
if full_at + kept > now or full_at == now and left > 0 then
  local new = pack('<I1I7I4', born, full_at, left)
  if full_at - now > farthest then new = new .. pack('<I7', now) end
  call('SET', key, new, 'PX', math.ceil((full_at + math.max(step, kept) - now) / 1000) + linger)
  state = new
elseif record then
  call('DEL', key)
  state = ''
end
