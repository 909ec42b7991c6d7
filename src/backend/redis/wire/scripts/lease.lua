-- Leases units: charges a charge set several times, for requests that wait for it
-- and ahead of demand. What is leased ahead is at most the instance's share of what
-- is left: an instance counts as long as it has asked lately, by a sorted set beside the
-- counter.
--
-- What was leased last is recorded for each charge set of windows, by the number of the
-- ask. An instance has one ask of a charge set under way. If it has not received the reply
-- that is recorded, that one was lost: the units are leased again, and are not charged
-- twice. An ask that arrives after a later one leases nothing: no request waits for it.

local RECORDED = 10000 -- milliseconds for which a record is kept

local seen = {}

-- How many instances use a counter, this one included. A key that is no sorted set counts as
-- one.
local function instances_of(key, lately)
  if seen[key] then return seen[key] end
  read('ZADD', key, now, string.format('%.0f', instance))
  read('ZREMRANGEBYSCORE', key, '-inf', now - lately)
  read('PEXPIRE', key, math.ceil(lately / 500))
  local count = read('ZCARD', key)
  seen[key] = type(count) == 'number' and max(count, 1) or 1
  return seen[key]
end

-- The units that were charged for asks whose replies were lost; nil if this ask is late.
local function lost_units(number, known, record)
  local stored = record and read('GET', record)
  if type(stored) ~= 'string' then return 0 end
  local last, units, ends = string.match(stored, '^(%d+):(%d+):(%d+)$')
  if not last then return 0 end
  if tonumber(last) >= number then return nil end
  if tonumber(last) <= known or tonumber(ends) <= now then return 0 end
  return tonumber(units)
end

-- Leases the charge set at the cursor, which moves behind it.
function lease_next()
  local number, known, record, waiting = input[cursor], input[cursor + 1], input[cursor + 2], input[cursor + 3]
  local ahead, lately, tiers = input[cursor + 4], input[cursor + 5], input[cursor + 6]
  local first, fleet = cursor + 7, cursor + 7 + 3 * tiers
  cursor = fleet + tiers
  record = record > 0 and KEYS[counters + record]
  local lost = lost_units(number, known, record)
  local is_late = not lost
  if is_late then waiting, ahead, lost = 0, 0, 0 end
  local again = min(waiting, lost)
  waiting, ahead = waiting - again, max(0, ahead - (lost - again))

  local left, share, instances, ends = UNKNOWN, UNKNOWN, 1, MOST
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    local s = open(i, d, set)
    if not s then return end
    local asking = instances_of(KEYS[counters + input[fleet + t]], lately)
    local fitting = earliest(s, d) == now and fits(s, d, (waiting + ahead) * asking) or 0
    left, share, instances = min(left, fitting), min(share, floor(fitting / asking)), max(instances, asking)
  end
  local served = min(waiting, left)
  local k = served + min(ahead, left - served, max(share - served, 0))
  -- At least one unit, while there is one.
  if k == 0 then k = min(waiting + ahead, left, 1) end
  if k > 0 then commit_all(first, tiers, now, k) end
  -- Also where it has leased nothing: an earlier ask may arrive later.
  if record and not is_late then
    for t = 0, tiers - 1 do ends = min(ends, states[input[first + 3 * t]][1]) end
    call('SET', record, string.format('%.0f:%.0f:%.0f', number, lost + k, ends), 'PX', RECORDED)
  end
  say(lost + k) say(instances) say(0)
  say_statuses(first, tiers)
end
