-- A common token bucket script: GCRA, in microseconds.
-- KEYS[1]: the key. ARGV: microseconds a unit, the burst in units.
-- Returns: admitted, remaining units, microseconds until the next unit.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + unit
local slack = now + unit * burst - full_at
if slack < 0 then
    return {0, 0, -slack}
end
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
return {1, math.floor(slack / unit), 0}
