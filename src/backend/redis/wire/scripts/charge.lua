-- How counters are charged: when requests conform, and what they are counted as. A charge
-- set is decided all or nothing.

local UNKNOWN = math.huge
local MUCH = 100 -- expired entries that are removed even if nothing is charged

-- The state of a tier. If its key is no counter of this version, nil: the reply then
-- says so.
local function open(i, d, set)
  local s = state_of(i, d, set)
  if not s then
    say(-1) say(i)
    return nil
  end
  -- Removed here, so that expired entries are not read again and again.
  if set > 0 and s.expired > MUCH then dirty[i] = d end
  return s
end

-- When enough entries of a log have expired. Each has at least one unit.
local function log_earliest(s, d)
  local excess, at = s[1] + d.cost - d.limit, max(now, s[3])
  local after = '(' .. string.format('%.0f', s.before)
  local from, count = 0, min(excess, 16)
  -- Where all are of one unit, the index says which one is the last: a request that costs much
  -- must not keep the server busy.
  if excess > 0 and s[1] == s[2] then from, count, excess = excess - 1, 1, 1 end
  while excess > 0 do
    local entries = call('ZRANGEBYSCORE', s.set, after, '+inf', 'LIMIT', from, count)
    for _, member in ipairs(entries) do
      local time, units = string.match(member, '^(%d+):(%d+)$')
      at, excess = max(at, time + d.window), excess - units
      if excess <= 0 then return at end
    end
    if #entries < count then break end
    from, count = from + count, min(count * 4, 4096)
  end
  return at
end

-- When one request conforms; nil if never.
local function earliest(s, d)
  if never(d) then return nil end
  local kind, cost = s.kind, d.cost
  if kind == BUCKET then
    local q, r, limit = found(s, d)
    if arrival(s, d) + d.q + 1 > MOST then return nil end
    if s[1] < now then return now end
    if limit == d.limit then
      q, r = subtract(q, r, d.slack_q, d.slack_r, d.units)
      return max(now, ceil(q, r))
    end
    -- Until the next charge the bucket refills at its old rate.
    if limit == 0 then return now end
    return max(now, when_missing(max(0, d.most_used - cost), q, r, rate_of(limit, d)))
  elseif kind == SLIDING then
    local start, current, previous = sliding_at(s, d, now)
    local from = max(now, start)
    local free = d.limit - current - cost
    if free < 0 then
      start, previous, free = start + d.window, current, d.limit - cost
    end
    local at = start
    if previous > free then at = start + d.window - min(muldiv(free, d.window, previous), d.window) end
    at = max(at, from)
    return at < MOST - 2 * d.window and at or nil
  elseif kind == LOG then
    return log_earliest(s, d)
  elseif kind == FLIGHT then
    return (cost == 0 or s[1] + cost <= d.limit) and now or UNKNOWN
  end
  if now >= s[1] then return now end
  local at = s[2] + cost <= d.limit and max(now, window_start(d, s[1])) or s[1]
  return at < MOST - d.window and at or nil
end

-- How many of `n` requests conform now, where one does.
local function fits(s, d, n)
  if n <= 1 or d.cost == 0 then return n end
  if s.kind ~= BUCKET then
    local _, left = standing(s, d)
    return min(n, floor(left / d.cost))
  end
  local q, r = max(s[1], now), s[1] < now and 0 or s[2]
  -- A bucket that was written under another limit is converted by its first charge; the
  -- other requests are decided after it.
  if s[3] ~= d.limit or q + (d.q + 1) * n > MOST then return 1 end
  local left_q, left_r = subtract(d.slack_q, d.slack_r, q - now, r, d.units)
  -- The first needs only what is left; each other one its cost in full.
  local more = min(n - 1, floor((left_q + left_r / d.units) / (d.q + d.r / d.units)))
  local function passes(count)
    local used_q, used_r = add(0, 0, d.q, d.r, d.units, count)
    return used_q < left_q or used_q == left_q and used_r <= left_r
  end
  while more > 0 and not passes(more) do more = more - 1 end
  while more < n - 1 and passes(more + 1) do more = more + 1 end
  return more + 1
end

local function commit(i, s, d, at, times, request)
  local kind, units = s.kind, d.cost * times
  -- A cost of zero creates no counter.
  if units == 0 and not values[i] and not dirty[i] then return end
  if kind == BUCKET then
    charge_bucket(s, d, at, d.q, d.r, times)
  elseif kind == SLIDING then
    local start, current, previous = sliding_at(s, d, at)
    store_sliding(s, d, start, current + units, previous, before_previous(s, d, start))
  elseif kind == LOG then
    if units == 0 then return end
    append(s, at, units)
    renew(s)
  elseif kind == FLIGHT then
    if units == 0 then return end
    -- One entry for each: they are released one by one.
    for n = 0, times - 1 do
      call('ZADD', s.set, now + d.window, string.format('%.0f.%.0f:%.0f', instance, request + n, d.cost))
    end
    s[1], s[2] = s[1] + units, s[2] + times
  elseif at >= s[1] and units > 0 then
    s[1], s[2] = window_end(d, at), units
  else
    s[2] = s[2] + units
  end
  dirty[i] = d
end

-- Charges the tiers at `first` in the input, each with three numbers.
local function commit_all(first, tiers, at, times, request)
  for t = 0, tiers - 1 do
    local i = input[first + 3 * t]
    commit(i, states[i], DEFS[input[first + 3 * t + 1]], at, times, request)
  end
end

-- When each of the tiers at `first` conforms, as `earliest` says; the latest of the
-- times that are known, not before `at`; whether one never conforms; and the first
-- that is full of units in flight.
local function when_all(first, tiers, at)
  local times, never_fits, full = {}, false, nil
  for t = 0, tiers - 1 do
    local time = earliest(states[input[first + 3 * t]], DEFS[input[first + 3 * t + 1]])
    times[t] = time
    if time == nil then
      never_fits = true
    elseif time == UNKNOWN then
      full = full or t
    else
      at = max(at, time)
    end
  end
  return times, at, never_fits, full
end

-- The tiers that do not conform now, as bits.
local function delaying(times, tiers)
  local mask = 0
  for t = 0, tiers - 1 do
    if times[t] ~= now then mask = mask + 2 ^ t end
  end
  return mask
end

-- Says the status of the tiers at `first`.
local function say_statuses(first, tiers)
  for t = 0, tiers - 1 do
    local a, b, c = standing(states[input[first + 3 * t]], DEFS[input[first + 3 * t + 1]])
    say(a) say(b) say(c)
  end
end

-- When a request that conforms at `at` should be admitted for the tier to be
-- smooth, and until when it may be delayed for other tiers.
local function pace(s, d, at)
  local kind = s.kind
  if kind == LOG then return at, at end
  if kind == BUCKET or kind == FLIGHT then return at, UNKNOWN end
  local finish, count
  if kind == SLIDING then
    local start
    start, count = sliding_at(s, d, at)
    finish = start + d.window
  else
    finish, count = window_at(s, d, at)
  end
  local put_off = finish - 1
  if kind == ANCHORED and at >= s[1] then put_off = at end
  if not smooth(d) or d.cost == 0 or count == 0 then return at, put_off end
  local start = kind == SLIDING and finish - d.window or window_start(d, finish)
  local passed, rest = muldiv(count, finish - start, max(1, d.limit))
  return max(at, start + passed + (rest > 0 and 1 or 0)), put_off
end

-- Decides the charge set at the cursor for `n` requests.
local function decide(n)
  local max_wait, not_before, request, tiers = input[cursor + 1], input[cursor + 2], input[cursor + 3], input[cursor + 4]
  local first, waits = cursor + 5, false
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    if not open(i, d, set) then return end
    if smooth(d) and min(d.longest, max_wait) > 0 then waits = true end
  end
  local times, known, never_fits, full = when_all(first, tiers, now + not_before)
  local at = full and UNKNOWN or known
  if n > 0 and at == now and not never_fits and not waits then
    local k = n
    for t = 0, tiers - 1 do
      k = min(k, fits(states[input[first + 3 * t]], DEFS[input[first + 3 * t + 1]], n))
    end
    commit_all(first, tiers, now, k, request)
    if k < n then
      local before = #out
      decide(n - k)
      -- The rest was decided on its own; the reply has the sum.
      out[before + 1] = out[before + 1] + k
      return
    end
    say(k) say(0) say(0)
  else
    local function may_wait(time)
      if time - now > max_wait then return false end
      for t = 0, tiers - 1 do
        local own = times[t]
        if own ~= UNKNOWN and own - now > DEFS[input[first + 3 * t + 1]].longest then return false end
      end
      return true
    end
    local admitted = nil
    if not never_fits and at ~= UNKNOWN and (at == now or may_wait(at)) then admitted = at end
    if admitted and waits then
      local latest, departs, paces = UNKNOWN, at, {}
      for t = 0, tiers - 1 do
        local s, d = states[input[first + 3 * t]], DEFS[input[first + 3 * t + 1]]
        local longest = min(d.longest, max_wait)
        local own, put_off = pace(s, d, at)
        local within = (own - now <= longest or at == now) and own or max(now + longest, at)
        paces[t] = within - now <= longest and within or at
        departs, latest = max(departs, paces[t]), min(latest, put_off)
      end
      departs = max(min(departs, latest), at)
      if departs > at then
        for t = 0, tiers - 1 do
          if paces[t] >= departs then times[t] = paces[t] end
        end
      end
      admitted = departs
    end
    local mask = delaying(times, tiers)
    if admitted then
      if n > 0 then commit_all(first, tiers, admitted, 1, request) end
      say(1) say(admitted - now) say(mask)
    else
      say(0)
      if never_fits then
        say(-1)
      elseif full and (known == now or may_wait(known)) then
        say(-2 - full)
      else
        say(known - now)
      end
      say(mask)
    end
  end
  say_statuses(first, tiers)
end

-- Decides the charge set at the cursor, which moves behind it.
local function decide_next()
  decide(input[cursor])
  cursor = cursor + 5 + 3 * input[cursor + 4]
end
