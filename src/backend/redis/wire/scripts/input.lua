-- What a call is about, and its counters as they are: this text is put in front of
-- plain.lua and of state.lua, which says what the header of ARGV[1] contains.

local call, read, floor = redis.call, redis.pcall, math.floor

local input = cmsgpack.unpack(ARGV[1])
local now, outlive, keeps, counters, definitions = input[1], input[2], input[3] == 1, input[5], input[6]
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

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

