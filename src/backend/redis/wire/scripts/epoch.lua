-- What this memory is known by: an id that is gone when the memory is, and when
-- it was last seen, which goes back when the memory does.
-- KEYS[1]  the key that holds both, as ID:SEEN
-- ARGV[1]  an id for a memory that has none yet
-- Returns ID:BEFORE:SEEN: when it was seen before, and now, in microseconds
-- since the Unix epoch. It has no TTL: it lasts as long as the memory.
local held = redis.call('GET', KEYS[1])
local id, before = string.match(held or '', '^(%x+):(%d+)$')
if not id then id, before = ARGV[1], '0' end
local time = redis.call('TIME')
local seen = string.format('%.0f', time[1] * 1000000 + time[2])
if tonumber(seen) < tonumber(before) then seen = before end
redis.call('SET', KEYS[1], id .. ':' .. seen)
return id .. ':' .. before .. ':' .. seen
