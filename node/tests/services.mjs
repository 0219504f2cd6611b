// Services that admit 5 requests of a client, except to /pid, which returns the worker's number. Each imports its own
// framework, since 8 workers of a test start at once.
import { EarrrlStore, RateLimits } from "earrrl";

// The length of windows, which do not end during a test.
const WINDOW = 100 * 86_400_000;
const HOST = "127.0.0.1";

const isPid = (path) => path === "/pid";
const limits = (path, pathOf) => new RateLimits([{ name: "address", limit: "gcra 5/100d burst=5", exempt: (request) => isPid(pathOf(request)) }], { path });

async function serveExpress(port, limit) {
  const { default: express } = await import("express");
  const app = express();
  app.get("/pid", (request, response) => response.send(String(process.pid)));
  app.use(limit);
  app.get("/", (request, response) => response.send("hello"));
  app.listen(port, HOST);
}

export const services = {
  "express-rate-limit": async (port, path) => {
    const { rateLimit } = await import("express-rate-limit");
    await serveExpress(port, rateLimit({ windowMs: WINDOW, limit: 5, store: new EarrrlStore({ path }) }));
  },
  "our middleware for Express": async (port, path) => {
    const { rateLimit } = await import("earrrl/express");
    await serveExpress(port, rateLimit(limits(path, (request) => request.url)));
  },
  "our middleware for Fastify": async (port, path) => {
    const [{ default: Fastify }, { rateLimit }] = await Promise.all([import("fastify"), import("earrrl/fastify")]);
    const app = Fastify();
    app.register(rateLimit(limits(path, (request) => request.url)));
    app.get("/pid", () => String(process.pid));
    app.get("/", () => "hello");
    await app.listen({ port, host: HOST });
  },
  "our middleware for Hono": async (port, path) => {
    const [{ Hono }, { serve }, { rateLimit }] = await Promise.all([import("hono"), import("@hono/node-server"), import("earrrl/hono")]);
    const app = new Hono();
    app.use(rateLimit(limits(path, (context) => context.req.path)));
    app.get("/pid", (context) => context.text(String(process.pid)));
    app.get("/", (context) => context.text("hello"));
    serve({ fetch: app.fetch, port, hostname: HOST });
  },
};
