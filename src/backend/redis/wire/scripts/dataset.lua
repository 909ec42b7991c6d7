-- Checks what identifies the dataset: an id that is lost with it, and a last-seen
-- time that goes back if the dataset does. `key` stores both, as ID:SEEN; without a
-- TTL, so it lasts as long as the data. `fresh` is an id for a dataset that has none.
--
-- Returns ID:BEFORE:SEEN:NOW: the last-seen time before this call and after it, and
-- the present time, in microseconds since the Unix epoch. SEEN is later than NOW if
-- the clock was set back.
function check_dataset(key, fresh)
  local stored = redis.call('GET', key)
  local id, before = string.match(stored or '', '^(%x+):(%d+)$')
  if not id then id, before = fresh, '0' end
  local time = redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  local seen = now
  if tonumber(seen) < tonumber(before) then seen = before end
  -- A server that is out of memory still answers what else is asked.
  local reply = redis.pcall('SET', key, id .. ':' .. seen)
  if reply.err and not string.find(reply.err, 'OOM', 1, true) then redis.call('SET', key, id .. ':' .. seen) end
  return table.concat({ id, before, seen, now }, ':')
end
