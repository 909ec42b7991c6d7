-- What a call is about, and its counters as they are. The text of decide.lua's parts is put
-- together in this order: input, fast, state, charge, debt, refund, lease, decide. What KEYS
-- and ARGV contain is said in decide.lua, and how counters are stored in state.lua.

local call, read, floor, max, min = redis.call, redis.pcall, math.floor, math.max, math.min
local SOON = 1000000 -- a TTL is not extended by less than this

local input = cmsgpack.unpack(ARGV[1])
local now, outlive, keeps, instance, counters, definitions = input[1], input[2], input[3] == 1, input[4], input[5], input[6]
local latest, changes, leases = input[7], input[8], input[9]
local FIRST = 9 -- the numbers before the definitions
local cursor = FIRST + 1 + 14 * definitions
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local out = { now }
local function say(number) out[#out + 1] = number end

-- The values of the counters. One of another type is a table.
local values = {}
if counters == 1 then
  values = { (read('GET', KEYS[1])) }
elseif counters > 1 then
  values = call('MGET', unpack(KEYS, 1, counters))
  local missing
  for i = 1, counters do
    if not values[i] then
      missing = missing or {}
      missing[#missing + 1] = KEYS[i]
    end
  end
  -- MGET returns nil for a key of another type.
  if missing and call('EXISTS', unpack(missing)) > 0 then
    for i = 1, counters do
      if not values[i] and call('EXISTS', KEYS[i]) > 0 then values[i] = {} end
    end
  end
end

-- The counters that are open, as they become. The state is `false` if the key is no counter
-- of this version.
local states = {}

-- When a counter expires that is in use until `idle`, and whether that is its TTL already.
local function lasting(expires, idle)
  if keeps and expires >= idle + SOON and expires > now then return expires, true end
  return max(idle, now) + outlive, false
end

-- Writes a counter. Its TTL reaches beyond the time at which it is idle: equal to a new one.
local function put(i, value, expires, is_kept)
  if is_kept then
    call('SET', KEYS[i], value, 'KEEPTTL')
  else
    call('SET', KEYS[i], value, 'PX', math.ceil((expires - now) / 1000))
  end
end
