-- Takes what an instance has charged on its own: without a limit, as a debt, so that
-- an overshoot is paid back. A batch that was taken before changes nothing: its
-- sender did not receive the reply, and repeats it.
--
-- KEYS     the counters, then for each counter the sorted set of the instances that
--          report it, by time, then the marker: the number of this instance's last
--          batch in this hash slot; the last one as in look.lua
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then the number of the batch, and for how many microseconds an instance
--          counts; then for each report: operation (1: charge, 2: give back),
--          counter, definition, units, the units' time (microseconds and parts),
--          and the time at which the first of them was charged
-- Returns  a MessagePack array: now, whether the batch was taken before, then for
--          each report: how many instances report the counter (0: the key is no
--          counter of this version) and the counter's state as three numbers. For a
--          bucket the time until it is full (microseconds and parts), and the mark of
--          a claim; for a window its end and its count; for a sliding window when it
--          is idle, its count, and the count of the window before

local GIVE_BACK = 2
local KEPT = 3600000 -- milliseconds for which a marker is kept

local number, lately = input[cursor], input[cursor + 1]
cursor = cursor + 2

local marker = KEYS[#KEYS - looks]
local last = read('GET', marker)
last = type(last) == 'string' and tonumber(last)
local is_repeat = last and number <= last or false
if not is_repeat then call('SET', marker, string.format('%.0f', number), 'PX', KEPT) end

local clock = now

-- What was charged in a window that is over is not counted any more, unless the
-- window still weighs on the present one.
local function charge(s, d, at)
  if d.kind == BUCKET then
    charge_bucket(s, d, max(min(at, clock), 0), c.q, c.r, 1)
  elseif d.kind == SLIDING then
    local start, current, previous = sliding_at(s, d, clock)
    if at >= start or start > clock then
      add_debt_to_sliding(s, d)
    elseif at >= start - d.window then
      store_sliding(s, d, start, current, previous + c.units)
    else
      return false
    end
  elseif clock < s[2] then
    local is_past = d.kind == ALIGNED and at < s[2] - d.window and s[2] - d.window <= clock
    if is_past or window_end(d, at) <= clock then return false end
    add_debt_to_window(s, d)
  else
    if at < s[2] or window_end(d, at) <= clock then return false end
    now = min(at, clock)
    add_debt_to_window(s, d)
    now = clock
  end
  return true
end

-- Units that were charged and are not used after all, in the window at that time.
local function give_back(s, d, at)
  if d.kind == BUCKET then
    s[2], s[3] = subtract(s[2], s[3], c.q, c.r, d.units)
  elseif d.kind == SLIDING then
    local start = max(0, s[2] - 2 * d.window)
    if at >= start then
      s[3] = max(0, s[3] - c.units)
    elseif at >= start - d.window then
      s[4] = max(0, s[4] - c.units)
    end
  elseif at < s[2] and at >= s[2] - d.window then
    s[3] = max(0, s[3] - c.units)
  end
end

local out = { clock, is_repeat and 1 or 0 }
local function say(number) out[#out + 1] = number end

while cursor <= #input do
  local op, i, d = input[cursor], input[cursor + 1], DEFS[input[cursor + 2]]
  local at = input[cursor + 6]
  c = { units = input[cursor + 3], q = input[cursor + 4], r = input[cursor + 5], left = 0, alone = 0,
    at = 0, finish = 0, mark = 0 }
  cursor = cursor + 7
  local s = state_of(i, d, 0)
  if not s then
    say(0) say(0) say(0) say(0)
  else
    if c.units > 0 and not is_repeat then
      if op == GIVE_BACK then
        if values[i] or dirty[i] then
          give_back(s, d, at)
          dirty[i] = d
        end
      elseif charge(s, d, at) then
        dirty[i] = d
      end
    end
    say(instances_of(KEYS[counters + i], lately))
    if d.kind == BUCKET then
      local q, r = arrival(s, d)
      if q < now then q, r = now, 0 end
      say(q - now) say(r) say(s[5])
    else
      say(s[2]) say(s[3]) say(d.kind == SLIDING and s[4] or 0)
    end
  end
end

for i, d in pairs(dirty) do write(i, idle_at(states[i], d)) end

return with_look(cmsgpack.pack(out))
