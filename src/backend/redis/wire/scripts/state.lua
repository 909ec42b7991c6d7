-- The state of counters and their algorithms. Times are whole microseconds since the Unix
-- epoch. Every number is an integer below 2^53, which a double holds exactly.
-- Products beyond that are divided bit by bit (`muldiv`).
--
-- A counter is a string: a byte for version and form, then doubles:
--   bucket   arrival time, parts of a microsecond, limit (negative if a change to a
--            lower limit has found reserved slots); and if it is settled late: the
--            time refunded, and the latest time charged for
--   window   end, count
--   sliding  time at which it is idle, this window's count, the last one's; and if it is
--            not zero: that of the window before those (UNKNOWN_COUNT: unknown)
--   log      units, entries, last time, units at the last time, version
--   flight   units, entries
-- A unit seldom takes a whole microsecond: a bucket keeps the rest as parts, of
-- which its rate has a fixed number to a microsecond.
-- The entries of a log or of a concurrency limit are in a sorted set beside it:
-- `time:units` by time, or `instance.request:units` by the end of the lease.

local MOST = 9007199254740991 -- 2^53 - 1
local SWEPT = 500 -- the most expired entries that one call removes
local BUCKET, ALIGNED, ANCHORED, SLIDING, LOG, FLIGHT = 1, 2, 3, 4, 5, 6
local SHORT, LENGTH_SHORT = '<Bddd', 25 -- a bucket that is not settled late, or a sliding window without its last number
local UNKNOWN_COUNT = 67108864 -- 2^26: higher counts are unknown to a claim
local FORMAT = { '<Bddddd', '<Bdd', '<Bdd', '<Bdddd', '<Bddddd', '<Bdd' }
local HEAD = { 33, 34, 34, 35, 36, 37 } -- 16 * version + form
local LENGTH = { 41, 17, 17, 33, 41, 17 }

local DEFS = {}
for i = 1, definitions do
  local d = FIRST + 14 * (i - 1)
  DEFS[i] = {
    kind = input[d + 1], cost = input[d + 2], limit = input[d + 3], window = input[d + 4],
    flags = input[d + 5], q = input[d + 6], r = input[d + 7], slack_q = input[d + 8],
    slack_r = input[d + 9], units = input[d + 10], longest = input[d + 11],
    period = input[d + 12], most_used = input[d + 13], furthest = input[d + 14],
  }
end

local function never(d) return d.flags % 2 == 1 end
local function smooth(d) return d.flags % 4 >= 2 end
local function late(d) return d.flags % 8 >= 4 end
local function monthly(d) return d.flags >= 8 end

-- floor(a * b / c) and the remainder; exact for c up to 2^51.
local function muldiv(a, b, c)
  local product = a * b
  if product <= MOST then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  local whole_a, rest_a = floor(a / c), a % c
  local whole_b, rest_b = floor(b / c), b % c
  local quotient, rest, bits = 0, 0, 2251799813685248 -- 2^51
  while bits >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if rest_b >= bits then
      rest_b, rest = rest_b - bits, rest + rest_a
    end
    local over = floor(rest / c)
    quotient, rest, bits = quotient + over, rest - over * c, bits / 2
  end
  return whole_a * b + rest_a * whole_b + quotient, rest
end

local function gcd(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

-- Windows, as in window.rs: of one length, or calendar months of UTC. Months are numbered
-- from January 1970 on. Years begin in March here, so that the leap day is the last one.
local function start_of_month(number)
  local year, month = floor((number + 23638) / 12), (number + 23638) % 12
  local days = 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400) + floor((153 * month + 2) / 5)
  return (days - 719468) * 86400000000
end

local function month_of(at)
  local number = floor(at / 2629746000000) -- by the mean month
  if start_of_month(number + 1) <= at then number = number + 1 end
  return start_of_month(number) > at and number - 1 or number
end

-- The start of the window of the wall clock that is open at a time.
local function aligned_start(d, at)
  if monthly(d) then return start_of_month(month_of(at)) end
  return at - (at - d.period) % d.window
end

-- The end of the window so many windows after the one that ends at `finish`.
local function window_after(d, finish, windows)
  if monthly(d) then return start_of_month(month_of(finish) + windows) end
  return finish + windows * d.window
end

-- The start of the window that ends at `finish`.
local function window_start(d, finish) return window_after(d, finish, -1) end

-- How many windows begin after now, up to the one that ends at `finish`.
local function windows_left(d, finish)
  if monthly(d) then return max(0, month_of(max(0, finish - 1)) - month_of(now)) end
  return floor(max(0, finish - 1 - now) / d.window)
end

-- The definitions of the counters that are written at the end.
local dirty = {}

-- Counts the sorted set, if the counter does not agree with it.
local function count_set(s, set)
  local units, entries = 0, read('ZRANGE', set, 0, -1)
  if entries.err then return false end
  for _, member in ipairs(entries) do units = units + tonumber(string.match(member, ':(%d+)$') or 0) end
  s[1], s[2] = units, #entries
  if s.kind == LOG then
    local last = entries[#entries]
    s[3] = last and tonumber(string.match(last, '^(%d+):')) or 0
    s[4] = last and tonumber(string.match(last, ':(%d+)$')) or 0
  end
  return true
end

-- Subtracts entries that have left a log's window, or whose lease has ended.
local function subtract_expired(s, set, before)
  local expired, units = call('ZCOUNT', set, '-inf', before), 0
  if expired > 0 and s[1] == s[2] then
    units = expired -- of one unit each
  elseif expired > 0 then
    for _, member in ipairs(call('ZRANGEBYSCORE', set, '-inf', before)) do
      units = units + tonumber(string.match(member, ':(%d+)$') or 0)
    end
  end
  s[1], s[2] = s[1] - units, s[2] - expired
  s.before, s.expired, s.expired_units = before, expired, units
end

-- The first write of a call decides whether a server that is full denies all of them. This
-- one is denied, and else writes nothing: before a first write that removes entries.
local function deny_when_full(s) call('ZADD', s.set, 'XX', 0, '') end

-- Removes expired entries: a bounded number, in case there are many.
local function sweep(s)
  if s.expired <= SWEPT then
    if s.expired > 0 then call('ZREMRANGEBYSCORE', s.set, '-inf', s.before) end
    return
  end
  local units, members = 0, call('ZRANGE', s.set, 0, SWEPT - 1)
  for _, member in ipairs(members) do units = units + tonumber(string.match(member, ':(%d+)$') or 0) end
  call('ZREM', s.set, unpack(members))
  s[1], s[2] = s[1] + s.expired_units - units, s[2] + s.expired - #members
end

-- The server's clock was set back. Moves a counter back that is further ahead than
-- it can be: it was written before that. Its usage is kept.
local function turn_back(s, i, d)
  if s.kind == FLIGHT then
    local most = now + d.window
    for _, member in ipairs(call('ZRANGEBYSCORE', s.set, string.format('(%.0f', most), '+inf')) do
      call('ZADD', s.set, most, member)
    end
    return
  end
  local field = s.kind == LOG and 3 or 1
  local length = min(s[field] - now - d.furthest, latest - now)
  if length <= 0 then return end
  if s.kind == SLIDING then length = math.ceil(length / d.window) * d.window end
  if s.kind == ALIGNED then length = s[1] - max(0, aligned_start(d, s[1] - length)) end
  if s.kind == LOG then
    local members = call('ZRANGE', s.set, 0, -1)
    deny_when_full(s)
    call('DEL', s.set)
    for _, member in ipairs(members) do
      local time, units = string.match(member, '^(%d+):(%d+)$')
      time = string.format('%.0f', max(0, time - length))
      call('ZADD', s.set, time, time .. ':' .. units)
    end
  end
  s[field] = s[field] - length
  if s.kind == BUCKET then s[5] = min(s[5], s[1]) end
  dirty[i] = d
end

local function state_of(i, d, set)
  local s = states[i]
  if s ~= nil then return s end
  local kind, value = d.kind, values[i]
  if not value then
    s = { 0, 0, 0, 0, 0 }
    if kind == BUCKET then s[3] = d.limit end
  elseif (kind == BUCKET or kind == SLIDING) and #value == LENGTH_SHORT and string.byte(value) == HEAD[kind] then
    local _, first, second, third = struct.unpack(SHORT, value)
    s = { first, second, third, 0, first }
  elseif type(value) == 'table' or string.byte(value) ~= HEAD[kind] or #value ~= LENGTH[kind] then
    states[i] = false
    return false
  else
    local _
    s = {}
    _, s[1], s[2], s[3], s[4], s[5] = struct.unpack(FORMAT[kind], value)
    s.is_long = true
  end
  -- Slots are reserved then that a higher limit does not move: see `found`.
  if kind == BUCKET and s[3] < 0 then s.is_reserved, s[3] = true, -s[3] end
  s.kind, s.is_long = kind, kind ~= BUCKET and kind ~= SLIDING or s.is_long or late(d)
  if set > 0 then
    s.set = KEYS[counters + set]
    local entries = read('ZCARD', s.set)
    if type(entries) == 'table' or entries ~= s[2] and not count_set(s, s.set) then
      states[i] = false
      return false
    end
    if now < latest then turn_back(s, i, d) end
    subtract_expired(s, s.set, kind == LOG and now - d.window or now)
  else
    s.was = value and s[1]
    if now < latest and value then turn_back(s, i, d) end
  end
  states[i] = s
  return s
end

-- Gives a log another version, whenever units were added or removed from the
-- middle: a claim with the present version is the latest one. Versions are later
-- than the clock, so that a counter that is created again does not repeat them.
local function renew(s)
  s[5] = min(max(s[5], now) + 1, MOST)
end

local function entry(time, units) return string.format('%.0f:%.0f', time, units) end

-- Adds units to a log at a time: to its last entry, if that is not before it.
local function append(s, time, units)
  local all = units
  if s[2] > 0 and s[3] >= time then
    time, all = s[3], s[4] + units
    deny_when_full(s)
    call('ZREM', s.set, entry(time, s[4]))
    s[2] = s[2] - 1
  end
  call('ZADD', s.set, time, entry(time, all))
  s[1], s[2], s[3], s[4] = s[1] + units, s[2] + 1, time, all
end

-- Writes an open counter that is in use until `idle`.
local function write(i, idle)
  local s = states[i]
  local kind = s.kind
  if s.set then
    deny_when_full(s)
    if s.keeps_expired then
      s[1], s[2] = s[1] + s.expired_units, s[2] + s.expired
    else
      sweep(s)
    end
  end
  local third = s.is_reserved and -s[3] or s[3]
  local is_long = s.is_long or kind == SLIDING and s[4] ~= 0
  put(i, struct.pack(is_long and FORMAT[kind] or SHORT, HEAD[kind], s[1], s[2], third, s[4], s[5]), idle, s.was)
  if s.set then call('PEXPIRE', s.set, lasting(idle)) end
end

-- Buckets ------------------------------------------------------------------

-- The arrival time, and the limit in whose terms it is: the one under which the bucket
-- was written, or the present one if reserved slots stay where they are.
local function found(s, d)
  if s.is_reserved and s[3] < d.limit then
    return s[2] > 0 and s[1] + 1 or s[1], 0, d.limit
  end
  return s[1], s[2], s[3]
end

-- The rate of another limit.
local function rate_of(limit, d)
  local divisor = gcd(limit, d.window)
  return limit / divisor, d.window / divisor
end

-- When at most `left` units are missing, at the rate of another limit.
local function when_missing(left, q, r, units, period)
  local length, rest = muldiv(left, period, units)
  if rest < r then length = length - 1 end
  return q - length
end

-- The arrival time at the present rate: units used under another limit are converted.
-- What is reserved is not used yet, so they are those that are missing by now, or once no
-- slot is reserved any more.
local function arrival(s, d)
  local q, r, limit = found(s, d)
  if limit == d.limit then return q, r end
  if q < now or limit == 0 then return q, 0 end
  local units, period = rate_of(limit, d)
  local at = max(now, when_missing(d.most_used, q, r, units, period))
  if q < at then return at, 0 end
  local used, rest = muldiv(q - at, units, period)
  used = used + math.ceil((rest + r) / period)
  q, r = muldiv(min(used, MOST / 4), d.period, d.units)
  return min(at + q, MOST), r
end

-- Adds a span, `times` over.
local function add(q, r, length_q, length_r, units, times)
  r = r + length_r * times
  local carry = floor(r / units)
  return q + length_q * times + carry, r - carry * units
end

local function subtract(q, r, length_q, length_r, units)
  q, r = q - length_q, r - length_r
  if r < 0 then q, r = q - 1, r + units end
  if q < 0 then return 0, 0 end
  return q, r
end

local function ceil(q, r) return r > 0 and q + 1 or q end

local function store_bucket(s, d, q, r)
  if q > MOST then q, r = MOST, 0 end
  s[1], s[2], s[3] = q, r, d.limit
end

-- Charges count from a whole microsecond, and a reservation from the first one at
-- which it conforms: the end of what is before it stays exact.
local function charge_bucket(s, d, at, length_q, length_r, times)
  local q, r = arrival(s, d)
  if s[3] ~= d.limit and s[3] > 0 then
    s[4] = min(s[4] + max(0, ceil(s[1], s[2]) - now), MOST)
  end
  if q < at and not (at > now and r > 0 and q + 1 == at) then q, r = at, 0 end
  q, r = add(q, r, length_q, length_r, d.units, times)
  if s.is_reserved or s[3] > d.limit then
    local most_q, most_r = muldiv(d.most_used, d.period, d.units)
    s.is_reserved = q - now > most_q or q - now == most_q and r > most_r
  end
  store_bucket(s, d, q, r)
  s[5] = max(s[5], at)
end

-- Windows ------------------------------------------------------------------

-- The end of the window that is open at a time, or opens then.
local function window_end(d, at)
  if d.kind == ANCHORED then return at + d.window end
  return window_after(d, aligned_start(d, at), 1)
end

local function window_at(s, d, at)
  if at >= s[1] then return window_end(d, at), 0 end
  return s[1], s[2]
end

-- A sliding window's start, its count and the count of the window before, at a
-- time that is not before the state's own window.
local function sliding_at(s, d, at)
  local start = max(0, s[1] - 2 * d.window)
  if s[1] > 0 and at < start + d.window then return start, s[2], s[3] end
  local opened = at - at % d.window
  local follows = s[1] > 0 and opened - start == d.window
  return opened, 0, follows and s[2] or 0
end

local function store_sliding(s, d, start, current, previous, before_that)
  s[1], s[2], s[3], s[4] = start + 2 * d.window, current, previous, before_that or UNKNOWN_COUNT
end

-- The count of the window two before the one that starts at `opened`.
local function before_previous(s, d, opened)
  local passed = (opened - max(0, s[1] - 2 * d.window)) / d.window
  if passed == 0 then return s[4] end
  return passed == 1 and s[3] or passed == 2 and s[2] or 0
end

-- When a counter equals a new one.
local function idle_at(s, d)
  if s.kind == BUCKET then return s[1] + 1 end
  if s.kind == LOG then return s[3] + d.window end
  if s.kind == FLIGHT then return now + d.window end
  return s[1]
end

-- The status in three numbers. For a bucket: the time until it is full
-- (microseconds and parts), and the mark of a claim. Else: the microseconds until
-- the limit is free again, the units left, and the mark of a claim.
local function standing(s, d)
  local kind = s.kind
  if kind == BUCKET then
    local q, r = arrival(s, d)
    if q < now then q, r = now, 0 end
    return q - now, r, s[4]
  elseif kind == SLIDING then
    local start, current, previous = sliding_at(s, d, now)
    local finish = start + d.window
    local weighed, rest = muldiv(previous, max(0, finish - max(now, start)), d.window)
    local used = weighed + (rest > 0 and 1 or 0) + current
    local is_known = max(s[3], s[4]) < UNKNOWN_COUNT
    local mark = is_known and (s[3] + 1) * UNKNOWN_COUNT + s[4] or 0
    return max(0, finish - now), now < start and 0 or max(0, d.limit - used), mark
  elseif kind == LOG then
    return s[1] > 0 and max(0, s[3] + d.window - now) or 0, max(0, d.limit - s[1]), s[5]
  elseif kind == FLIGHT then
    return 0, max(0, d.limit - s[1]), 0
  end
  if now >= s[1] then return kind == ALIGNED and window_end(d, now) - now or 0, d.limit, 0 end
  return s[1] - now, now >= window_start(d, s[1]) and max(0, d.limit - s[2]) or 0, 0
end
