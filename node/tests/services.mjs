// Services that admit 5 requests of a client, except to /pid, which returns the worker's number.
import { EarrrlStore, RateLimits } from "earrrl";
import { rateLimit as expressLimit } from "earrrl/express";
import express from "express";
import { rateLimit } from "express-rate-limit";

// Windows begin at multiples of their length, so a long one hardly ends during a test.
const WINDOW = 100 * 86_400_000;

function serveExpress(port, limit) {
  const app = express();
  app.get("/pid", (request, response) => response.send(String(process.pid)));
  app.use(limit);
  app.get("/", (request, response) => response.send("hello"));
  app.listen(port, "127.0.0.1");
}

export const services = {
  "express-rate-limit": (port, path) => serveExpress(port, rateLimit({ windowMs: WINDOW, limit: 5, store: new EarrrlStore({ path }) })),
  "our middleware": (port, path) =>
    serveExpress(port, expressLimit(new RateLimits([{ name: "address", limit: "gcra 5/100d burst=5" }], { path }))),
};
