-- Requests with a random API key. All requests are built in advance, so that
-- building them does not load the measured machine.

local keys = 10000
local requests = {}

function init(args)
  math.randomseed(tonumber(args[1]))
  for key = 1, keys do
    requests[key] = wrk.format("GET", "/", { ["x-api-key"] = string.format("tenant-%07d", key) })
  end
end

function request()
  return requests[math.random(keys)]
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format("requests %d failed %d\n", summary.requests, failed))
end
