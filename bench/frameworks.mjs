// The applications of Express and Fastify that bench/frameworks.py measures: `node frameworks.mjs FRAMEWORK LIMIT PORT`.
import fastifyRateLimit from "@fastify/rate-limit";
import { RateLimits } from "earrrl";
import ours from "earrrl/express";
import oursOfFastify from "earrrl/fastify";
import express from "express";
import { rateLimit } from "express-rate-limit";
import Fastify from "fastify";
import { RateLimiterMemory } from "rate-limiter-flexible";

const MOST = 10_000_000;
const LIMIT = `${MOST}/minute`;
const ANSWER = { hello: "world" };
const rules = () => new RateLimits([{ name: "address", limit: LIMIT }]);

// As the package's documentation shows it, without headers or with those that it shows.
function flexible(hasHeaders) {
  const limiter = new RateLimiterMemory({ points: MOST, duration: 60 });
  return (request, response, next) => {
    const passed = (found) => {
      if (hasHeaders) response.set({ "X-RateLimit-Limit": MOST, "X-RateLimit-Remaining": found.remainingPoints, "X-RateLimit-Reset": Math.ceil((Date.now() + found.msBeforeNext) / 1000) });
      next();
    };
    limiter.consume(request.ip).then(passed, () => response.status(429).send("Too Many Requests"));
  };
}

const SERVERS = {
  express(kind, port) {
    const app = express();
    const onRoute = kind === "`earrrl`, limit on a route" ? [ours(new RateLimits(), LIMIT)] : [];
    if (kind === "`earrrl`, middleware") app.use(ours(rules()));
    if (kind === "express-rate-limit") app.use(rateLimit({ windowMs: 60_000, limit: MOST }));
    if (kind.startsWith("rate-limiter-flexible")) app.use(flexible(kind.endsWith("with headers")));
    app.get("/", ...onRoute, (request, response) => response.json(ANSWER));
    app.listen(port, "127.0.0.1");
  },
  async fastify(kind, port) {
    const app = Fastify();
    const onRoute = kind === "`earrrl`, limit on a route" ? { config: { rateLimit: LIMIT } } : {};
    if (kind === "`earrrl`, middleware") await app.register(oursOfFastify(rules()));
    if (onRoute.config) await app.register(oursOfFastify(new RateLimits()));
    if (kind === "@fastify/rate-limit") await app.register(fastifyRateLimit, { max: MOST, timeWindow: "1 minute" });
    app.get("/", onRoute, async () => ANSWER);
    await app.listen({ port, host: "127.0.0.1" });
  },
};

const [framework, kind, port] = process.argv.slice(2);
SERVERS[framework](kind, Number(port));
