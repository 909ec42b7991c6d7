-- Reads the cooldowns in force.
--
-- KEYS[1]  the sorted set, as publish_cooldowns.lua writes it
-- ARGV[1]  not used
-- Returns  for each cooldown a line LEFT KEY, as publish_cooldowns.lua takes them
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call(
  'ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 4096)
local lines = {}
for at = 1, #found, 2 do
  lines[#lines + 1] = '\n' .. string.format('%.0f', found[at + 1] - now) .. ' ' .. found[at]
end
return table.concat(lines)
