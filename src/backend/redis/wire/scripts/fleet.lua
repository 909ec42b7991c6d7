-- The instances that use a counter: those that have asked for it lately, in a sorted set beside it, by time.

local seen = {}

-- How many there are, this one included. A key that is no sorted set counts as one.
local function instances_of(key, lately)
  if seen[key] then return seen[key] end
  read('ZADD', key, now, string.format('%.0f', instance))
  read('ZREMRANGEBYSCORE', key, '-inf', now - lately)
  read('PEXPIRE', key, math.ceil(lately / 500))
  local count = read('ZCARD', key)
  seen[key] = type(count) == 'number' and max(count, 1) or 1
  return seen[key]
end

