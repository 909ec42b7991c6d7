// Servers in Node that limit to 50 requests a second: servers.mjs NAME PORT
// `run.py` copies this file next to the installed packages.

import express from "express";
import { rateLimit } from "express-rate-limit";
import { RateLimiterMemory } from "rate-limiter-flexible";

const [name, port] = process.argv.slice(2);
const app = express();

const dialects = {
  "express-draft-6": { standardHeaders: "draft-6", legacyHeaders: false },
  "express-draft-7": { standardHeaders: "draft-7", legacyHeaders: false },
  "express-draft-8": { standardHeaders: "draft-8", legacyHeaders: false },
  "express-legacy": { standardHeaders: false, legacyHeaders: true },
};

if (name in dialects) {
  app.use(rateLimit({ windowMs: 1000, limit: 50, ...dialects[name] }));
} else if (name === "rate-limiter-flexible") {
  const limiter = new RateLimiterMemory({ points: 50, duration: 1 });
  // The headers are those of the package's documentation.
  const headers = (state) => ({
    "Retry-After": state.msBeforeNext / 1000,
    "X-RateLimit-Limit": 50,
    "X-RateLimit-Remaining": state.remainingPoints,
    "X-RateLimit-Reset": Math.ceil((Date.now() + state.msBeforeNext) / 1000),
  });
  app.use((request, response, next) =>
    limiter.consume(request.ip).then(
      (state) => {
        response.set(headers(state));
        next();
      },
      (state) => response.set(headers(state)).status(429).send("Too Many Requests"),
    ),
  );
} else {
  throw new Error(`unknown server: ${name}`);
}
app.get("/", (_, response) => response.send("hello\n"));
app.listen(Number(port), "127.0.0.1");
