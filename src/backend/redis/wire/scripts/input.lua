-- What a call is about, and its counters as they are. The text of decide.lua's parts is put
-- together in this order: input, fast, state, charge, debt, refund, lease, decide. What KEYS
-- and ARGV contain is said in decide.lua, and how counters are stored in state.lua.

local call, read, floor, max, min = redis.call, redis.pcall, math.floor, math.max, math.min

local input = cmsgpack.unpack(ARGV[1])
local now, outlive, instance, counters, definitions = input[1], input[2], input[3], input[4], input[5]
local latest, changes, leases = input[6], input[7], input[8]
local FIRST = 8 -- the numbers before the definitions
local cursor = FIRST + 1 + 14 * definitions
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local out = { now }
local function say(number) out[#out + 1] = number end

-- The values of the counters. One of another type is a table, which MGET does not tell from
-- one that is not there.
local values = counters > 0 and call('MGET', unpack(KEYS, 1, counters)) or {}
for i = 1, counters do
  if not values[i] then values[i] = read('GET', KEYS[i]) end
end

-- The counters that are open, as they become. The state is `false` if the key is no counter
-- of this version.
local states = {}

-- The TTL, in milliseconds, of what is in use until `idle`: until the second multiple of
-- `outlive` after that.
local function lasting(idle) return math.ceil(((floor(max(idle, now) / outlive) + 2) * outlive - now) / 1000) end

-- Writes a counter that is in use until `idle`, and was until `before`; nil if it is new. A
-- TTL takes a third of the time of a write, and is the same for most of them: by the server's
-- clock, since a limiter's may stand still.
local function put(i, value, idle, before)
  if before and input[1] == 0 and floor(before / outlive) == floor(idle / outlive) then
    call('SET', KEYS[i], value, 'KEEPTTL')
  else
    call('SET', KEYS[i], value, 'PX', lasting(idle))
  end
end
