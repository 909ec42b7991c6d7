-- Tells of keys that are held back: those who listen, and who comes later.
-- KEYS[1]  the sorted set of what is held back, by when that ends in
--          milliseconds of the server's clock; also the channel
-- ARGV[1]  what is told: a line for who reads it, and then for each key a line
--          LEFT KEY, with the milliseconds that are left
-- Returns why nobody was told, or an empty string.
-- A hold never ends early. Of more than so many, those leave that end first.
local most = 4096
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
for left, key in string.gmatch(ARGV[1], '\n(%d+) ([^\n]+)') do
  local ends = now + left
  local known = redis.call('ZSCORE', KEYS[1], key)
  if not known or tonumber(known) < ends then redis.call('ZADD', KEYS[1], string.format('%.0f', ends), key) end
end
local over = redis.call('ZCARD', KEYS[1]) - most
if over > 0 then
  redis.call('ZREM', KEYS[1], unpack(redis.call('ZRANGE', KEYS[1], 0, math.min(over, 1000) - 1)))
end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.min(last[2] - now, 3600000))) end
-- Without the right to publish it is kept all the same.
local published = redis.pcall('PUBLISH', KEYS[1], ARGV[1])
return type(published) == 'table' and published.err or ''
