-- Leases units: charges a charge set several times, for requests that wait for it
-- and ahead of demand. What is leased ahead is at most the instance's share of what
-- is left: an instance counts as long as it has asked lately. Units that are given
-- back come first, so that they are leased again.
--
-- What was leased last is recorded for each charge set of windows, by the number of the
-- ask. An instance has one ask of a charge set under way. If it has not received the reply
-- that is recorded, that one was lost: the units are leased again, and are not charged
-- twice. An ask that arrives after a later one leases nothing: no request waits for it.
--
-- KEYS     the counters, then their sorted sets, then for each charge set with a number
--          the record of what it has leased, then for each counter the sorted
--          set of the instances that asked for it, by time; the last one as in dataset.lua
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then how many changes there are, and how many charge sets; for each of
--          these the number of the ask (0: none), and the last one that the instance
--          has received; then each change as in change.lua;
--          then for each charge set: how many units requests wait for, how many
--          to lease ahead, for how many microseconds an instance counts, id of the
--          first request, number of its tiers; for each tier: counter, definition,
--          sorted set (0: none)
-- Returns  a MessagePack array: now, then for each change what change.lua says, then
--          for each charge set: how many units are leased; how many instances have
--          asked lately; and for each tier the three numbers of `standing`.
--          If a key is no counter of this version: -1 and the number of the key.

local RECORDED = 10000 -- milliseconds for which a record is kept

-- The first write of a call decides whether a server that is full denies all of them. This
-- one is denied, and else writes nothing.
local fleet_keys = #KEYS - checks - counters
local first_write = read('ZADD', KEYS[fleet_keys + 1], 'XX', 0, '')
if type(first_write) == 'table' and string.find(first_write.err or '', 'OOM', 1, true) then return first_write end

local changes, sets, records, nth = input[cursor], input[cursor + 1], 0, 0
local asks = {}
cursor = cursor + 2
for n = 1, sets do
  local number = input[cursor]
  if number > 0 then records = records + 1 end
  asks[n] = { number = number, known = input[cursor + 1], record = records }
  cursor = cursor + 2
end

-- The key of an ask's record.
local function record_of(ask) return KEYS[fleet_keys - records + ask.record] end

-- The units that were charged for asks whose replies were lost; nil if this ask is late.
local function lost_units(ask)
  local stored = ask.number > 0 and read('GET', record_of(ask))
  if type(stored) ~= 'string' then return 0 end
  local number, units, ends = string.match(stored, '^(%d+):(%d+):(%d+)$')
  if not number then return 0 end
  if tonumber(number) >= ask.number then return nil end
  if tonumber(number) <= ask.known or tonumber(ends) <= now then return 0 end
  return tonumber(units)
end

-- Records what an ask has leased, until the first of its windows ends.
local function record(ask, first, tiers, units)
  if ask.number == 0 or units == 0 then return end
  local ends = MOST
  for t = 0, tiers - 1 do ends = min(ends, states[input[first + 3 * t]][2]) end
  call('SET', record_of(ask), string.format('%.0f:%.0f:%.0f', ask.number, units, ends), 'PX', RECORDED)
end

-- Leases one charge set, of which some units were charged before. Its tiers start
-- at the cursor, with three numbers each. Returns how many units it has leased.
local function lease(waiting, ahead, lately, request, tiers, charged)
  local first, wanted = cursor, waiting + ahead
  local left, share, instances, is_old = UNKNOWN, UNKNOWN, 1, false
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    local s = open(i, d, set)
    if not s then return 0 end
    local asking = instances_of(KEYS[fleet_keys + i], lately)
    local fitting = fits(s, d, wanted * asking)
    if fitting == nil then fitting = earliest(s, d) == now and 1 or 0 end
    -- A bucket that was written under another limit is converted by its first
    -- charge.
    if s.kind == BUCKET and s[4] ~= d.limit then is_old = true end
    left, share, instances = min(left, fitting), min(share, floor(fitting / asking)), max(instances, asking)
  end
  local served = min(waiting, left)
  local k = served + min(ahead, left - served, max(share - served, 0))
  -- At least one unit, while there is one.
  if k == 0 then k = min(wanted, left, 1) end
  if is_old then k = min(k, 1) end
  if k > 0 then commit_all(first, tiers, now, k, request) end
  say(charged + k) say(instances)
  say_statuses(first, tiers)
  return charged + k
end

for _ = 1, changes do change_next(say) end

each_charge_set(function(waiting, ahead, lately, request, tiers)
  nth = nth + 1
  local ask, first = asks[nth], cursor
  local lost = lost_units(ask)
  local is_late = lost == nil
  lost = lost or 0
  if is_late then waiting, ahead = 0, 0 end
  local served = min(waiting, lost)
  local left = max(0, ahead - (lost - served))
  record(ask, first, tiers, lease(waiting - served, left, lately, request + served, tiers, lost))
end)
write_all()

return with_check(cmsgpack.pack(out))
