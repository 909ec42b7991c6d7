-- Decides charge sets one after the other, each all or nothing. It reads every
-- counter, decides, and writes at the end; a rejection charges nothing.
--
-- KEYS     the counters, then their sorted sets
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then for each charge set: how many coalesced requests it is for (they
--          are admitted in order; 0: it asks for one, and charges nothing), longest wait, not before (both in microseconds
--          from now), id of the request, number of its tiers; for each tier:
--          counter, definition, sorted set (0: none)
-- Returns  a MessagePack array: now, then for each charge set: how many requests
--          are admitted; when, in microseconds from now (the wait of an admitted
--          request, or when the next one conforms; -1: never; -2 - i: unknown,
--          since tier i is full of units in flight); the tiers that delay it, as
--          bits; and for each tier the three numbers of `standing`.
--          If a key is no counter of this version: -1 and the number of the key.

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
  if kind == ANCHORED and at >= s[2] then put_off = at end
  if not smooth(d) or d.cost == 0 or count == 0 then return at, put_off end
  local passed, rest = muldiv(count, d.window, max(1, d.limit))
  return max(at, finish - d.window + passed + (rest > 0 and 1 or 0)), put_off
end

-- Decides one charge set. Its tiers start at the cursor, with three numbers each.
local function decide(n, max_wait, not_before, request, tiers)
  local first = cursor
  local k, waits = n, false
  for t = 0, tiers - 1 do
    local i, d, set = input[first + 3 * t], DEFS[input[first + 3 * t + 1]], input[first + 3 * t + 2]
    local s = open(i, d, set)
    if not s then return end
    if smooth(d) and min(d.longest, max_wait) > 0 then waits = true end
    local fitting = fits(s, d, n)
    if fitting == nil then fitting = earliest(s, d) == now and n or 0 end
    if fitting < k then k = fitting end
  end
  if n > 1 and k > 1 then
    -- A bucket that was written under another limit is converted by its first
    -- charge; the other requests are decided after it.
    for t = 0, tiers - 1 do
      local s, d = states[input[first + 3 * t]], DEFS[input[first + 3 * t + 1]]
      if s.kind == BUCKET and s[4] ~= d.limit then k = 1 end
    end
  end
  if k > 0 and not waits and not_before == 0 then
    commit_all(first, tiers, now, k, request)
    if k < n then
      local rest = n - k
      local before = #out
      decide(rest, max_wait, not_before, request, tiers)
      -- The rest was decided on its own; the reply has the sum.
      out[before + 1] = out[before + 1] + k
      return
    end
    say(k) say(0) say(0)
  else
    local times, known, never_fits, full = when_all(first, tiers, now + not_before)
    local at = full and UNKNOWN or known
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

each_charge_set(decide)
for i, d in pairs(dirty) do write(i, idle_at(states[i], d)) end

return cmsgpack.pack(out)
