-- Leases units: charges a charge set several times, for requests that wait for it
-- and ahead of demand. What is leased ahead is at most the instance's share of what
-- is left: an instance counts as long as it has asked lately. Units that are given
-- back come first, so that they are leased again.
--
-- KEYS     the counters, then their sorted sets, then for each counter the sorted
--          set of the instances that asked for it, by time; the last one as in look.lua
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then how many changes there are, and each as in change.lua,
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

-- Leases one charge set, of which some units may be charged already. Its tiers start
-- at the cursor, with three numbers each.
local function lease(waiting, ahead, lately, request, tiers, charged)
  local first, wanted = cursor, waiting + ahead
  local left, share, instances, is_old = UNKNOWN, UNKNOWN, 1, false
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    local s = open(i, d, set)
    if not s then return end
    local asking = instances_of(KEYS[#KEYS - looks - counters + i], lately)
    local fitting = fits(s, d, wanted * asking)
    if fitting == nil then fitting = earliest(s, d) == now and 1 or 0 end
    -- A bucket that was written under another limit is converted by its first
    -- charge.
    if s.kind == BUCKET and s[4] ~= d.limit then is_old = true end
    left, share, instances = min(left, fitting), min(share, floor(fitting / asking)), max(instances, asking)
  end
  local served = min(waiting, left)
  local extra = min(ahead, left - served, max(share - served, 0))
  if served == 0 and extra == 0 then extra = min(ahead, left, 1) end
  local k = served + extra
  if is_old then k = min(k, 1) end
  if k > 0 then
    commit_all(first, tiers, now, k, request)
    if k < waiting and is_old then
      return lease(waiting - k, ahead, lately, request + k, tiers, (charged or 0) + k)
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
  say((charged or 0) + k) say(when) say(mask) say(instances)
  say_statuses(first, tiers)
end

cursor = cursor + 1
for _ = 1, input[cursor - 1] do change_next(say) end

each_charge_set(lease)
write_all()

return with_look(cmsgpack.pack(out))
