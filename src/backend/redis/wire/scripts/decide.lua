-- Makes changes, leases units, and decides requests, in this order: what is given back is
-- there for those who ask. It reads every counter, decides, and writes at the end, but for
-- entries of sorted sets, which it writes as they are charged; a rejection charges nothing.
--
-- KEYS     the counters, then other keys, which are numbered from 1: sorted sets of counters,
--          records of leases, and the sorted sets of the instances that asked for a counter;
--          with ARGV[2] the last one is what identifies the dataset
-- ARGV[1]  a MessagePack array. Its header: now in microseconds (0: the server's
--          time), how long to keep a counter beyond its use at least, id of the instance,
--          number of counters, number of definitions, the latest time that the server's
--          clock has had if it was set back since (else 0), number of changes, number of
--          leases.
--          Then for each definition 14 numbers: kind, cost, limit, window, flags (1: never
--          conforms, 2: smooth, 4: settled late, 8: calendar months, of which `window` is the
--          longest); for a bucket the cost's time and the slack (both as microseconds and
--          parts), and units of its rate; longest wait; for a bucket the period of its rate
--          (for a fixed window how long after the epoch it begins), and the most units that
--          are missing without a reservation (a leaky bucket has only the next departure:
--          0); and how far ahead of the clock a counter can be.
--          Then for each change 13 numbers: operation (1: refund, 2: add debt,
--          3: release, 4: renew, 5: forget the counter), counter, definition, sorted set
--          (0: none), units, the units' time (microseconds and parts), units left of the
--          claim, their time in microseconds (of a sliding window: the mark of the
--          charge, 0 once more was charged), the claim's time, its end, its mark, id of
--          the request.
--          Then for each lease: the number of the ask (0: none is recorded), the last one
--          that the instance has received, the record (0: none), how many units requests
--          wait for, how many to lease ahead, for how many microseconds an instance counts,
--          number of its tiers; for each tier: counter, definition, 0; for each tier: the set
--          of the instances that asked for it.
--          Then for each charge set: how many coalesced requests it is for (they
--          are admitted in order; 0: it asks for one, and charges nothing), longest wait,
--          not before (both in microseconds from now), id of the request, number of its
--          tiers; for each tier: counter, definition, sorted set (0: none)
-- ARGV[2]  only where the dataset is checked: an id for one that has none
-- Returns  with ARGV[2] what follows, and what dataset.lua says; else only what follows.
--          A MessagePack array: now; then for each change whether it was made (0: the key is
--          no counter of this version), units left of the claim (of a counter to forget: 1 if
--          it was there), its time, its end and its mark; then for each lease how many units
--          are leased, how many instances have asked lately, 0, and for each tier the three
--          numbers of `standing`; then for each charge set how many requests are admitted;
--          when, in microseconds from now (the wait of an admitted request, or when the next
--          one conforms; -1: never; -2 - i: unknown, since tier i is full of units in
--          flight); the tiers that delay it, as bits; and for each tier the three numbers of
--          `standing`.
--          If a key is no counter of this version: -1 and the number of the key.

-- The first write of a call decides whether a server that is full denies all of them. This
-- one is denied, and else writes nothing.
if leases > 0 then
  local first = read('ZADD', KEYS[counters + 1], 'XX', 0, '')
  if type(first) == 'table' and string.find(first.err or '', 'OOM', 1, true) then return first end
end
for _ = 1, changes do change_next() end
for _ = 1, leases do lease_next() end
while cursor <= #input do
  if not decide_fast() then decide_next() end
end
for i, d in pairs(dirty) do
  local s = states[i]
  if s.set and s[2] == 0 and not (s.keeps_expired and s.expired > 0) then
    call('DEL', KEYS[i], s.set)
  else
    write(i, idle_at(s, d))
  end
end

local reply = cmsgpack.pack(out)
if ARGV[2] then return { reply, check_dataset(KEYS[#KEYS], ARGV[2]) } end
return reply
