-- Changes of what was charged: refunds, debts, and the release and renewal of units in
-- flight.
--
-- A refund never admits more than the limit: what cannot be shown to be unused
-- is forfeited.

local REFUND, ADD_DEBT, RELEASE, FORGET = 1, 2, 3, 5

local function refund_bucket(s, d)
  local finish = end_of(s, d)
  if not finish then return end
  if is_latest(s, d) then
    if s[4] == c.mark and s[1] >= finish then s[1], s[2] = finish, 0 end
    s[1], s[2] = subtract(s[1], s[2], c.q, c.r, d.units)
    c.finish, c.mark = ceil(s[1], s[2]), s[4]
    return
  end
  -- Refunded units move up all reservations. The latest one has counted on what
  -- was refunded by then, so a claim keeps what lies beyond it, and at least
  -- what it would have if nothing else had been refunded. A bucket that is not settled
  -- late does not say for when that is.
  if not late(d) then return end
  if d.units > 1 then finish = max(0, finish - 1) end
  local free = max(0, max(finish, c.at + c.alone) - s[5])
  local q, r = c.q, c.r
  if q >= free then q, r = free, 0 end
  s[1], s[2] = subtract(s[1], s[2], q, r, d.units)
  s[4] = s[4] + ceil(q, r)
  c.finish, c.mark = short_of(d, max(0, finish - ceil(q, r))), s[4]
end

-- Where a refunded debt ends once its last window is empty: how many windows
-- earlier, the count there, the claim's part of it, whether that is its first
-- window, and how much is refunded.
local function back(units, left, limit, open, others)
  limit = max(1, limit)
  local windows = (others or units < left) and floor(units / limit) + 1 or math.ceil(units / limit)
  windows = min(windows, open)
  if windows < 1 then return nil end
  local before = (windows - 1) * limit
  local in_last = min(units - before, limit)
  return windows, limit - in_last, min(left - before, limit) - in_last, left - before <= limit, before + in_last
end

local function refund_window(s, d)
  local finish, count = s[1], s[2]
  if finish ~= c.finish or finish >= MOST then return end
  local own = min(c.units, c.mark, count)
  s[2], c.mark = count - own, c.mark - own
  if count == own then
    local windows, left, mine = back(c.units - own, c.left - own, d.limit, windows_left(d, finish), true)
    if windows then s[1], s[2], c.mark = window_after(d, finish, -windows), left, mine end
  end
  -- The first charge that remains opens an anchored window.
  if d.kind == ANCHORED and s[2] == 0 and s[1] - d.window <= now then s[1] = min(s[1], now) end
  c.finish = s[1]
end

-- The last units of a window that is yet to come have left it, and no later one counts
-- any: the windows before it are as they were when the units were charged. Else nothing
-- would be admitted before that window.
local function reopen_before(s, d)
  local start = max(0, s[1] - 2 * d.window)
  local is_empty = s[2] == 0 and (c.finish == start + d.window or c.finish == start and s[3] == 0)
  if c.before == 0 or not is_empty or start <= now then return end
  local previous, before_that = floor(c.before / UNKNOWN_COUNT) - 1, c.before % UNKNOWN_COUNT
  -- Units that have left since then do not come back.
  if c.finish ~= start then previous = min(previous, s[3]) end
  store_sliding(s, d, max(0, c.finish - 2 * d.window), previous, before_that)
end

local function refund_sliding(s, d)
  if s[1] >= MOST then return end
  local start, rest, left = max(0, s[1] - 2 * d.window), c.units, c.left
  local finish = start + d.window
  if c.finish == finish then
    local own = min(rest, c.mark, s[2])
    s[2], c.mark = s[2] - own, c.mark - own
    rest, left = rest - own, left - own
    if s[2] == 0 then
      local open = floor(max(0, finish - 1 - now) / d.window)
      local windows, count, mine, first, units = back(rest, left, d.limit, open, false)
      if windows then
        store_sliding(s, d, start - windows * d.window, count, first and c.at or d.limit)
        c.finish, c.mark = finish - windows * d.window, mine
        rest, left = rest - units, left - units
      end
      if rest > 0 and left > 0 and c.mark == 0 then
        c.finish, c.mark = c.finish - d.window, min(left, d.limit)
      end
    end
  end
  -- The count of the window before still weighs.
  if rest > 0 and c.finish == max(0, s[1] - 2 * d.window) then
    local own = min(rest, c.mark, s[3])
    s[3], c.mark = s[3] - own, c.mark - own
  end
  reopen_before(s, d)
end

local function read_entry(member)
  local time, units = string.match(member, '^(%d+):(%d+)$')
  return tonumber(time), tonumber(units)
end

-- Reads a log's last entry, after it has changed.
local function find_last(s)
  s[3], s[4] = read_entry(call('ZRANGE', s.set, -1, -1)[1] or '0:0')
end

local function purge(s)
  if s.expired > 0 then call('ZREMRANGEBYSCORE', s.set, '-inf', s.before) end
  s.expired, s.expired_units = 0, 0
end

-- Rotates a log by `units`. A full log admits another unit when its oldest one
-- expires, so each unit of a debt replaces the oldest of the last `limit` units,
-- one window later. A refund rotates it back, if this says so: the last `limit` units
-- lie within a window, so those that move become the last ones. Where others were
-- refunded, a reservation may be later.
local function rotate(s, d, units, is_back)
  local length = is_back and -d.window or d.window
  local rounds, rest = floor(units / d.limit), units % d.limit
  -- Units before the last `limit` ones have expired by then, and stay.
  local aside = max(0, s[1] - d.limit)
  local from = is_back and s[1] - rest or aside
  -- From which unit on, up to which, and by how many windows it moves.
  local parts = { { 0, aside, 0 }, { aside, from, rounds }, { from, from + rest, rounds + 1 }, { from + rest, s[1], rounds } }
  local before, kept, last, first = 0, {}, s[3], nil
  for _, member in ipairs(call('ZRANGE', s.set, 0, -1)) do
    local time, count = read_entry(member)
    if before + count > aside then first = first or time end
    for _, part in ipairs(parts) do
      local own = min(before + count, part[2]) - max(before, part[1])
      if own > 0 then
        local moved = part[3] == 0 and time or min(max(0, time + part[3] * length), MOST - 1)
        kept[moved] = (kept[moved] or 0) + own
      end
    end
    before = before + count
  end
  call('DEL', s.set)
  s[2] = 0
  for time, count in pairs(kept) do
    call('ZADD', s.set, time, entry(time, count))
    s[2] = s[2] + 1
  end
  find_last(s)
  return first == nil or last <= first + d.window
end

local function knows_latest(s)
  return s[5] == c.mark and s[5] < MOST
end

local function add_debt_to_log(s, d)
  if c.units == 0 or d.limit == 0 then return end
  local is_same = knows_latest(s) and c.left > 0
  purge(s)
  local at = max(now, s[3])
  local fitting = min(max(0, d.limit - s[1]), c.units)
  if fitting > 0 then append(s, at, fitting) end
  local rotated = c.units - fitting
  local is_reversible = rotated == 0 or rotate(s, d, rotated, false)
  renew(s)
  extend(is_same, c.units)
  if not is_same then c.at = at end
  c.finish = is_same and c.finish + rotated or rotated
  -- The last version of all is never the latest.
  c.mark = is_reversible and s[5] or MOST
end

-- Removes up to so many units from the first entries of a log, from the last of these on.
local function take_before(s, entries, units)
  while units > 0 and entries > 0 do
    entries = entries - 1
    local member = call('ZRANGE', s.set, entries, entries)[1]
    local time, count = read_entry(member)
    local taken = min(units, count)
    call('ZREM', s.set, member)
    units, s[1], s[2] = units - taken, s[1] - taken, s[2] - 1
    if count > taken then
      call('ZADD', s.set, time, entry(time, count - taken))
      s[2] = s[2] + 1
    end
  end
end

-- If nothing was charged since, the charge is undone step by step. Else units are
-- removed from the first time that any of them was charged for, or older ones, unless
-- they replaced others. Undoing keeps what has expired: it counts again if the clock is set
-- back.
local function refund_log(s, d)
  s.keeps_expired = true
  if knows_latest(s) and s[3] < MOST - 1 then
    -- Entries that have expired meanwhile may have to be rotated back as well.
    s[1], s[2] = s[1] + s.expired_units, s[2] + s.expired
    local rotated = min(c.units, c.finish)
    if rotated == 0 or s[1] >= d.limit then
      if rotated > 0 then rotate(s, d, rotated, true) end
      c.finish = c.finish - rotated
      take_before(s, s[2], c.units - rotated)
      find_last(s)
    end
    subtract_expired(s, s.set, s.before)
  elseif c.finish == 0 then
    purge(s)
    local units = s[1]
    take_before(s, call('ZCOUNT', s.set, '-inf', string.format('%.0f', c.at)), c.units)
    -- A debt cannot be rotated back past the gap.
    if s[1] < units then renew(s) end
    find_last(s)
  end
end

local function change_in_flight(s, d, op, request)
  local member = string.format('%.0f.%.0f:%.0f', instance, request, c.units)
  if op == RELEASE then
    -- A lease that has ended does not count any more.
    local lease = call('ZSCORE', s.set, member)
    if lease and tonumber(lease) > s.before and call('ZREM', s.set, member) > 0 then
      s[1], s[2] = s[1] - c.units, s[2] - 1
    end
    return
  end
  purge(s)
  if call('ZADD', s.set, now + d.window, member) > 0 then
    s[1], s[2] = s[1] + c.units, s[2] + 1
  end
end

-- Makes the change at the cursor, which moves behind it, and says what became of the
-- claim.
function change_next()
  local op, i, d, set = input[cursor], input[cursor + 1], DEFS[input[cursor + 2]], input[cursor + 3]
  c = {
    units = input[cursor + 4], q = input[cursor + 5], r = input[cursor + 6], left = input[cursor + 7],
    alone = input[cursor + 8], before = input[cursor + 8], at = input[cursor + 9], finish = input[cursor + 10], mark = input[cursor + 11],
  }
  local request = input[cursor + 12]
  cursor = cursor + 13
  local s = state_of(i, d, set)
  if s then
    local kind, there = d.kind, values[i] or dirty[i]
    if op == FORGET then
      c.left = there and 1 or 0
      call('DEL', KEYS[i])
      if s.set then call('DEL', s.set) end
      values[i], states[i], dirty[i] = nil, nil, nil
    elseif kind == FLIGHT then
      change_in_flight(s, d, op, request)
      dirty[i] = d
    elseif op == ADD_DEBT then
      if s.set then deny_when_full(s) end
      if not there then c.left = 0 end
      if kind == BUCKET then add_debt_to_bucket(s, d)
      elseif kind == SLIDING then add_debt_to_sliding(s, d)
      elseif kind == LOG then add_debt_to_log(s, d)
      else add_debt_to_window(s, d) end
      dirty[i] = d
    elseif op == REFUND and there then
      if kind == BUCKET then refund_bucket(s, d)
      elseif kind == SLIDING then refund_sliding(s, d)
      elseif kind == LOG then refund_log(s, d)
      else refund_window(s, d) end
      if op == REFUND then c.left = max(0, c.left - c.units) end
      dirty[i] = d
    end
  end
  say(s and 1 or 0) say(c.left) say(c.at) say(c.finish) say(c.mark)
end
