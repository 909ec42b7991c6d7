-- Leases units: charges a charge set several times, for requests that wait for it
-- and ahead of demand. What is leased ahead is at most the instance's share of what
-- is left: an instance counts as long as it has asked lately. Of a sliding window or log
-- it is at most a share of a twentieth of the limit: units may be used when the window
-- that they were charged in has moved on, and are beyond the limit then. Units that are given
-- back come first, so that they are leased again.
--
-- What was leased is recorded for each charge set of windows, by the number of the ask,
-- until the instance says that it has received that or a later one. If its reply was
-- lost, the units are leased again, and are not charged twice.
--
-- KEYS     the counters, then their sorted sets, then for each charge set with a number
--          the record of what it has leased, then for each counter the sorted
--          set of the instances that asked for it, by time; the last one as in dataset.lua
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then how many changes there are, and how many charge sets; for each of
--          these the number of the ask (0: none), the last one that the instance
--          has received, and the last one whose reply was lost; then each change as in
--          change.lua;
--          then for each charge set: how many requests wait for it, how many units
--          to lease ahead, for how many microseconds an instance counts, id of the
--          first request, number of its tiers; for each tier: counter, definition,
--          sorted set (0: none)
-- Returns  a MessagePack array: now, then for each change what change.lua says, then
--          for each charge set: how many units are
--          charged, of which waiting requests take the first; when the next one
--          conforms, and the tiers that delay it, as in decide.lua, or 0 and 0 if
--          no request is left; how many instances have asked lately; and for each
--          tier the three numbers of `standing`.
--          If a key is no counter of this version: -1 and the number of the key.

local UNUSED_PART = 20 -- of a sliding limit, at most this part is leased and not used
local RECORDED = 2000 -- milliseconds for which a record is kept

local changes, sets, records, nth = input[cursor], input[cursor + 1], 0, 0
local asks = {}
cursor = cursor + 2
for n = 1, sets do
  local number = input[cursor]
  if number > 0 then records = records + 1 end
  asks[n] = { number = number, known = input[cursor + 1], lost = input[cursor + 2], record = records }
  cursor = cursor + 3
end

-- The key of an ask's record.
local function record_of(ask) return KEYS[#KEYS - checks - counters - records + ask.record] end

-- The units that were charged for asks whose replies were lost. The others that have
-- not been received are still on their way, and stay recorded.
local function lost_units(ask)
  local stored, units = ask.number > 0 and read('GET', record_of(ask)), 0
  ask.entries = {}
  if type(stored) ~= 'string' then return 0 end
  for entry, number, count, ends in string.gmatch(stored, '((%d+):(%d+):(%d+))') do
    number = tonumber(number)
    if number > ask.known and tonumber(ends) > now then
      if number <= ask.lost then
        units = units + tonumber(count)
      else
        ask.entries[#ask.entries + 1] = entry
      end
    end
  end
  return units
end

-- Records what an ask has leased, until the first of its windows ends.
local function record(ask, first, tiers, units)
  if ask.number == 0 or units == 0 then return end
  local ends = MOST
  for t = 0, tiers - 1 do ends = min(ends, states[input[first + 3 * t]][2]) end
  ask.entries[#ask.entries + 1] = string.format('%.0f:%.0f:%.0f', ask.number, units, ends)
  call('SET', record_of(ask), table.concat(ask.entries, ' '), 'PX', RECORDED)
end

-- Leases one charge set, of which some units may be charged already. Its tiers start
-- at the cursor, with three numbers each.
local function lease(waiting, ahead, lately, request, tiers, charged)
  local first, wanted = cursor, waiting + ahead
  local left, share, instances, is_old = UNKNOWN, UNKNOWN, 1, false
  local most = UNKNOWN
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    local s = open(i, d, set)
    if not s then return end
    local asking = instances_of(KEYS[#KEYS - checks - counters + i], lately)
    local fitting = fits(s, d, wanted * asking)
    if fitting == nil then fitting = earliest(s, d) == now and 1 or 0 end
    -- A bucket that was written under another limit is converted by its first
    -- charge.
    if s.kind == BUCKET and s[4] ~= d.limit then is_old = true end
    if s.kind == SLIDING or s.kind == LOG then
      most = min(most, floor(d.limit / UNUSED_PART / asking / max(1, d.cost)))
    end
    left, share, instances = min(left, fitting), min(share, floor(fitting / asking)), max(instances, asking)
  end
  local served = min(waiting, left)
  local extra = min(ahead, left - served, max(share - served, 0), most)
  if served == 0 and extra == 0 then extra = min(ahead, left, most, 1) end
  local k = served + extra
  if is_old then k = min(k, 1) end
  if k > 0 then
    commit_all(first, tiers, now, k, request)
    if k < waiting and is_old then
      return lease(waiting - k, ahead, lately, request + k, tiers, charged + k)
    end
  end
  local when, mask = 0, 0
  if k < waiting then
    local times, known, never_fits, full = when_all(first, tiers, now)
    when, mask = known - now, delaying(times, tiers)
    if never_fits then
      when = -1
    elseif full and when == 0 then
      when = -2 - full
    end
  end
  say(charged + k) say(when) say(mask) say(instances)
  say_statuses(first, tiers)
  return charged + k
end

for _ = 1, changes do change_next(say) end

each_charge_set(function(waiting, ahead, lately, request, tiers)
  nth = nth + 1
  local ask, first = asks[nth], cursor
  local lost = lost_units(ask)
  local served = min(waiting, lost)
  local left = max(0, ahead - (lost - served))
  local units = lease(waiting - served, left, lately, request + served, tiers, lost)
  if units then record(ask, first, tiers, units) end
end)
write_all()

return with_check(cmsgpack.pack(out))
