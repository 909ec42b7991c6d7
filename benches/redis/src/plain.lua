-- One decision of a token bucket as most write it: GCRA, in microseconds.
-- KEYS[1]: the key. ARGV: microseconds a unit; how many units may come at once.
-- Answers: admitted, units left, microseconds until the next one.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + unit
local room = now + unit * burst - full_at
if room < 0 then
    return {0, 0, -room}
end
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
return {1, math.floor(room / unit), 0}
