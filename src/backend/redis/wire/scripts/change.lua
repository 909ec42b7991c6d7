-- Changes what was charged: refunds it, adds debt, and releases or renews units
-- in flight.
--
-- KEYS     the counters, then their sorted sets
-- ARGV[1]  a MessagePack array: the header and the definitions as in state.lua,
--          then for each change 13 numbers: operation (1: refund, 2: add debt,
--          3: release, 4: renew, 5: forget the counter), counter, definition, sorted set (0: none),
--          units, the units' time (microseconds and parts), units left of the
--          claim, their time in microseconds (of a sliding window: the mark of the
--          charge, 0 once more was charged), the claim's time, its end, its mark, id of
--          the request
-- Returns  a MessagePack array: for each change whether it was made (0: the key is
--          no counter of this version), units left of the claim, its time, its
--          end and its mark

local out = {}
local function say(number) out[#out + 1] = number end

while cursor <= #input do change_next(say) end
write_all()

return cmsgpack.pack(out)
