-- Debts: units that are charged whatever the limit says. A debt is a row of
-- reservations of one unit each, so that it is paid back before others are admitted.
-- It changes `c`, the claim that is charged, from `now` on.

local c -- the claim that is changed

-- Adds units to the claim, or starts a new claim of them.
local function extend(is_same, units)
  c.left = is_same and c.left + units or units
end

-- Whether the arrival time differs from `finish` at most by what rounding hides.
local function is_at(s, d, finish)
  local shortest = floor(d.period / d.units)
  local later = ceil(s[1], s[2]) - finish
  if not late(d) then return later == 0 end
  return shortest > 0 and later >= 0 and later <= (shortest > 1 and 1 or 0)
end

-- Where the claimed units end now: those before them may have been refunded.
-- nil if it is unknown.
local function end_of(s, d)
  if s[3] ~= d.limit or s[1] >= MOST or s[4] >= MOST then return nil end
  return max(0, c.finish - max(0, s[4] - c.mark))
end

local function is_latest(s, d)
  local finish = end_of(s, d)
  return finish ~= nil and finish > 0 and is_at(s, d, finish)
end

local function short_of(d, finish)
  return d.units > 1 and max(0, finish - 2) or finish
end

local function add_debt_to_bucket(s, d)
  local latest, finish = is_latest(s, d), end_of(s, d)
  charge_bucket(s, d, now, c.q, c.r, 1)
  -- Others may have been charged in between. Then the whole claim counts as if
  -- it ended where its first part does, which is never later.
  local behind = late(d) and finish and not latest and c.left > 0 and finish > now
  c.finish = behind and short_of(d, finish + c.q) or ceil(s[1], s[2])
  extend(latest or behind, c.units)
  if not latest and not behind then c.at = now end
  c.mark = s[4]
end

-- The claim's units in the window that ends at `finish` with `count` units, if
-- more are added there and perhaps beyond.
local function own_units(finish, count, beyond)
  local own = finish == c.finish and c.mark or 0
  if finish == c.finish and beyond and count ~= own then c.left = own end
  extend(finish == c.finish, c.units)
  return own
end

-- Over how many more windows a debt extends of which `free` fits into this one,
-- and how much of it is in the last one.
local function carry(free, limit)
  local excess = c.units - free
  if excess <= 0 then return nil end
  limit = max(1, limit)
  local windows = math.ceil(excess / limit)
  return windows, excess - (windows - 1) * limit
end

local function add_debt_to_window(s, d)
  local finish, count = window_at(s, d, now)
  local windows, last = carry(max(0, d.limit - count), d.limit)
  local own = own_units(finish, count, windows ~= nil)
  if not windows then
    s[1], s[2], c.mark = finish, count + c.units, own + c.units
  else
    finish = window_after(d, finish, windows)
    if finish < MOST - d.window then
      s[1], s[2] = finish, last
    else
      s[1], s[2] = MOST, d.limit
    end
    c.mark = last
  end
  c.finish = s[1]
end

local function add_debt_to_sliding(s, d)
  local start, current, previous = sliding_at(s, d, now)
  local finish, free = start + d.window, max(0, d.limit - current)
  local windows, last = carry(free, d.limit)
  local continues = finish == c.finish and current == c.mark and c.left > c.mark
  local own = own_units(finish, current, windows ~= nil)
  c.before = 0
  if not windows then
    store_sliding(s, d, start, current + c.units, previous)
    c.finish, c.mark = finish, own + c.units
    return
  end
  local full = max(current, d.limit)
  if not continues then
    -- The count that weighs on the first window with any of it.
    c.at = (free > 0 or own > 0) and previous or full
  end
  start = start + windows * d.window
  if start < MOST - 4 * d.window then
    store_sliding(s, d, start, last, windows == 1 and full or d.limit)
  else
    s[1], s[2], s[3] = MOST, d.limit, d.limit
  end
  c.finish, c.mark = max(0, s[1] - d.window), last
end
