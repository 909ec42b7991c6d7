-- Publishes cooldowns to the instances that listen, and stores them for those that
-- start later. A stored cooldown never ends early. Beyond `most` of them, those
-- that end first are dropped.
--
-- KEYS[1]  the sorted set of cooldowns, by their end in milliseconds of the
--          server's clock; also the name of the channel
-- ARGV[1]  the message: a line with version and database, then for each cooldown a
--          line LEFT KEY, with the milliseconds left
-- Returns  why publishing failed, or an empty string
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
-- Without the right to publish, the cooldowns are stored all the same.
local published = redis.pcall('PUBLISH', KEYS[1], ARGV[1])
return type(published) == 'table' and published.err or ''
