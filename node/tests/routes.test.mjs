// Limits on single routes of Express 4 and 5, Fastify, Hono and Koa, as they really run.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import test from "node:test";
import { serve } from "@hono/node-server";
import Router from "@koa/router";
import { RateLimits } from "earrrl";
import { rateLimit as forExpress } from "earrrl/express";
import { rateLimit as forFastify } from "earrrl/fastify";
import { rateLimit as forHono } from "earrrl/hono";
import { rateLimit as forKoa } from "earrrl/koa";
import express from "express";
import express4 from "express4";
import Fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import mount from "koa-mount";

const listening = async (server) => (await once(server, "listening"), server);
const lines = readFileSync(join(process.env.EARRRL_ROOT, "testdata/paths/spellings.txt"), "utf8").split("\n");
const shown = lines.filter((line) => line && !line.startsWith("#")).map((line) => line.split(/\s/)[0]);
const targets = shown.map((text) => Buffer.from(text.replace(/\{(..)\}/g, (_, byte) => String.fromCharCode(parseInt(byte, 16))), "latin1"));

const withExpress = (framework) => (limits, limit, options) => {
  const app = framework();
  const part = framework.Router();
  part.get("/login", forExpress(limits, limit, options("login")), (request, response) => response.send("REACHED"));
  part.get("/other", forExpress(limits, limit, options("other")), (request, response) => response.send("other"));
  app.use("/v1", part);
  app.get("/free", (request, response) => response.send("free"));
  return listening(app.listen(0, "127.0.0.1"));
};

// Services with a limit on /v1/login below a prefix, another on /v1/other, and none on /free.
const services = {
  express: withExpress(express),
  "express 4": withExpress(express4),
  fastify: async (limits, limit, options) => {
    const app = Fastify({ forceCloseConnections: true, ignoreTrailingSlash: true, caseSensitive: false, ignoreDuplicateSlashes: true });
    app.register(forFastify(limits));
    app.register(
      async (part) => {
        part.get("/login", { config: { rateLimit: { limit, ...options("login") } } }, () => "REACHED");
        part.get("/other", { config: { rateLimit: { limit, ...options("other") } } }, () => "other");
      },
      { prefix: "/v1" },
    );
    app.get("/free", () => "free");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: (limits, limit, options) => {
    const [app, part] = [new Hono({ strict: false }), new Hono({ strict: false })];
    part.get("/login", forHono(limits, limit, options("login")), (context) => context.text("REACHED"));
    part.get("/other", forHono(limits, limit, options("other")), (context) => context.text("other"));
    app.route("/v1", part);
    app.get("/free", (context) => context.text("free"));
    return listening(serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }));
  },
};

for (const [name, prefixed] of Object.entries({
  koa: (part) => part.prefix("/v1").routes(),
  "koa-mount": (part) => mount("/v1", new Koa().use(part.routes())),
})) {
  services[name] = (limits, limit, options) => {
    const app = new Koa();
    app.silent = true;
    const part = new Router({ sensitive: false, strict: false });
    part.get("/login", forKoa(limits, limit, options("login")), (context) => void (context.body = "REACHED"));
    part.get("/other", forKoa(limits, limit, options("other")), (context) => void (context.body = "other"));
    app.use(prefixed(part));
    app.use(new Router().get("/free", (context) => void (context.body = "free")).routes());
    return listening(app.listen(0, "127.0.0.1"));
  };
}

async function answer(port, target, headers = "") {
  const socket = connect(port, "127.0.0.1");
  socket.end(Buffer.concat([Buffer.from("GET "), Buffer.from(target), Buffer.from(` HTTP/1.1\r\nHost: a.example\r\n${headers}Connection: close\r\n\r\n`)]));
  const parts = [];
  try {
    for await (const part of socket) parts.push(part);
  } catch {
    // A rejected request may be answered by a connection reset.
  }
  return Buffer.concat(parts).toString("latin1");
}

const headerOf = (request, name) => request.headers?.[name] ?? request.req?.header?.(name);

for (const [name, serveWith] of Object.entries(services)) {
  async function withService(limits, limit, options, work) {
    const server = await serveWith(limits, limit, options);
    const get = (target, key) => answer(server.address().port, target, key && `x-key: ${key}\r\n`);
    try {
      await work(get, async (target, key) => Number((await get(target, key)).split(" ")[1]));
    } finally {
      server.closeAllConnections?.();
      server.close();
    }
  }

  test(`${name}: each route has a limit of its own`, async () => {
    await withService(new RateLimits(), "2/day", () => ({}), async (get, status) => {
      const statuses = [];
      for (const path of ["/v1/login", "/v1/other", "/free"]) for (let turn = 0; turn < 3; turn++) statuses.push(await status(path));
      assert.deepEqual(statuses, [200, 200, 429, 200, 200, 429, 200, 200, 200]);
      assert.match(await get("/v1/login"), /content-type: application\/problem\+json/i);
    });
  });

  test(`${name}: a name shares a limit, which can be changed and reset`, async () => {
    const limits = new RateLimits([{ name: "address", limit: "9/day" }]);
    await withService(limits, "2/day", () => ({ name: "both", key: "everyone" }), async (get, status) => {
      assert.deepEqual([await status("/v1/login"), await status("/v1/other"), await status("/v1/login")], [200, 200, 429]);
      limits.reset("both", "");
      limits.change("both", "3/day");
      assert.match(await get("/v1/other"), /ratelimit: .*"both";r=2/i);
    });
    assert.throws(() => limits.route("5/day", { name: "both" }), /name: "both" is there already/);
    assert.throws(() => limits.route("5/day", { name: "address" }), /name: "address" is there already/);
  });

  test(`${name}: functions may return promises`, async () => {
    const options = () => ({
      key: async (request) => headerOf(request, "x-key"), exempt: async (request) => headerOf(request, "x-key") === "admin", cost: () => Promise.resolve(2),
      plans: [{ name: "big", limit: "4/day", applies: async (request) => headerOf(request, "x-key") === "big" }],
    });
    await withService(new RateLimits(), "2/day", (part) => ({ name: part, ...options() }), async (get, status) => {
      const statuses = [];
      for (const key of ["a", "a", "b", "admin", "admin", "big", "big", "big"]) statuses.push(await status("/v1/login", key));
      assert.deepEqual(statuses, [200, 429, 200, 200, 200, 200, 200, 429]);
    });
  });

  test(`${name}: what reaches the handler is counted`, async () => {
    await withService(new RateLimits(), "9999/year", (part) => ({ name: part }), async (get) => {
      const left = [];
      for (const [place, target] of targets.entries()) {
        const received = await get(target);
        if (!received.includes("REACHED")) continue;
        const figure = /"login";r=(\d+)/.exec(received);
        assert.ok(figure, `${name} serves ${shown[place]} uncounted`);
        left.push(Number(figure[1]));
      }
      assert.ok(left.length >= 8);
      assert.deepEqual(left, left.map((_, place) => 9998 - place));
    });
  });
}

test("keys are strings, whole numbers, bigints and buffers", async () => {
  const judge = (key) => new RateLimits().route("1/day", { key: async function made() { return key; } }).judgeLater("GET", "/", {}, undefined, {});
  for (const key of ["a", 7, 7n, Buffer.from("a"), null, undefined]) assert.equal((await judge(key)).status, undefined);
  const message = /key: made returned (an object|an array|true|a symbol|NaN|1.5); expected a string, a whole number, a bigint or a Buffer/;
  for (const key of [{}, [], true, Symbol("a"), NaN, 1.5]) {
    await assert.rejects(judge(key), message);
    const limits = new RateLimits([{ name: "a", limit: "1/day", key: function made() { return key; } }]);
    assert.throws(() => limits.judge("GET", "/", {}, undefined, {}), message);
  }
});

test("Fastify: HEAD counts as GET, also of a route with more methods", async () => {
  const app = Fastify();
  await app.register(forFastify(new RateLimits()));
  app.route({ method: ["POST", "GET"], url: "/", config: { rateLimit: "3/day" }, handler: () => "hello" });
  for (const limit of [false, null]) app.get(`/${limit}`, { config: { rateLimit: limit } }, () => "hello");
  const address = await app.listen({ port: 0, host: "127.0.0.1" });
  try {
    const statuses = [];
    for (const method of ["GET", "HEAD", "POST", "HEAD", "GET"]) statuses.push((await fetch(address, { method })).status);
    assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
    for (const limit of [false, null]) assert.match(await (await fetch(`${address}/${limit}`)).text(), new RegExp(`limit: ${limit} is no limit`));
  } finally {
    await app.close();
  }
});

test("a denial has its own type, whatever an earlier middleware has set", async () => {
  const limits = () => new RateLimits([{ name: "all", limit: "1/day", cost: 2 }]);
  const typed = express();
  typed.use((request, response, next) => next(response.type("html") && undefined));
  const typedKoa = new Koa();
  typedKoa.use((context, next) => ((context.type = "html"), next()));
  for (const app of [typed.use(forExpress(limits())), typedKoa.use(forKoa(limits()))]) {
    const server = await listening(app.listen(0, "127.0.0.1"));
    assert.match(await answer(server.address().port, "/"), /^HTTP\/1.1 429 [^]*\ncontent-type: application\/problem\+json\r\n/i);
    server.close();
  }
});

// Services with two limits, behind a middleware that sets headers of the same names.
const OWN = { RateLimit: '"own"', "Retry-After": "1", "X-Own": "1" };
const behindOwn = {
  express: (limits, limit, name) => {
    const app = express();
    app.use((request, response, next) => next(response.set(OWN) && undefined));
    app.get("/", forExpress(limits), forExpress(limits, limit, { name }), (request, response) => response.send("hello"));
    return listening(app.listen(0, "127.0.0.1"));
  },
  fastify: async (limits, rateLimit, name) => {
    const app = Fastify();
    app.addHook("onRequest", (request, reply, next) => next(reply.headers(OWN) && undefined));
    app.register(forFastify(limits));
    app.get("/", { config: { rateLimit: { limit: rateLimit, name } } }, () => "hello");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: (limits, limit, name) => {
    const app = new Hono();
    app.use((context, next) => (Object.entries(OWN).forEach(([own, value]) => context.header(own, value)), next()));
    app.get("/", forHono(limits), forHono(limits, limit, { name }), (context) => context.text("hello"));
    return listening(serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }));
  },
  koa: (limits, limit, name) => {
    const app = new Koa();
    app.use((context, next) => (context.set(OWN), next()));
    app.use(forKoa(limits)).use(forKoa(limits, limit, { name })).use((context) => void (context.body = "hello"));
    return listening(app.listen(0, "127.0.0.1"));
  },
};

for (const [name, serveBehind] of Object.entries(behindOwn)) {
  test(`${name}: a denial keeps the headers that are there, and the limits in them`, async () => {
    const server = await serveBehind(new RateLimits([{ name: "all", limit: "9/day" }]), "2/day", "route");
    try {
      for (const expected of ["200", "200", "429"]) {
        const text = await answer(server.address().port, "/");
        const valuesOf = (header) => [...text.matchAll(new RegExp(`^${header}: (.*)\r$`, "gim"))].flatMap(([, values]) => values.split(", "));
        const names = valuesOf("ratelimit").map((limit) => limit.split(";")[0]);
        assert.deepEqual([text.split(" ")[1], names.sort(), valuesOf("x-own")], [expected, ['"all"', '"own"', '"route"'], ["1"]]);
        const [wait, ...others] = valuesOf("retry-after").map(Number);
        assert.deepEqual([wait > 1, others], [expected === "429", []]);
      }
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
}

test("Express: paths of rules hold for WebSockets of express-ws", async () => {
  const app = express();
  // express-ws looks for the handler of a WebSocket by a path of its own.
  app.use((request, response, next) => {
    request.ws = {};
    request.url = `${request.url}/.websocket`;
    next();
  });
  app.use(forExpress(new RateLimits([{ name: "login", limit: "1/day", paths: "/login" }])));
  app.get("/login/.websocket", (request, response) => response.send("hello"));
  const server = await listening(app.listen(0, "127.0.0.1"));
  try {
    const statuses = [];
    for (let turn = 0; turn < 2; turn++) statuses.push(Number((await answer(server.address().port, "/login")).split(" ")[1]));
    assert.deepEqual(statuses, [200, 429]);
  } finally {
    server.close();
  }
});

test("limits that are made in each request end", () => {
  const limits = new RateLimits([], { capacity: 1 });
  for (let turn = 0; turn < 1000; turn++) limits.route("1/day");
  assert.throws(() => limits.route("1/day"), /limit: 1000 limits on routes are in use, which is the most; make a limit once, not in each request/);
  // Those that are there are shared on.
  for (let turn = 0; turn < 3; turn++) assert.ok(limits.route("1/day", { name: "route-1" }));
});

test("mistakes", () => {
  const limits = new RateLimits();
  for (const [limit, options, message] of [["5/fortnight", {}, /./], [[], {}, /limit: an empty array/], ["1/day", { paths: "/" }, /paths: a limit on a route/],
    ["1/day;2/day", { plans: [{ name: "a", limit: "9/day", applies: () => true }] }, /plans: a limit with plans has one text/],
    ["1/day", { costAfter: async () => 1 }, /costAfter: costAfter is asynchronous/]]) {
    assert.throws(() => limits.route(limit, options), message);
    assert.throws(() => forExpress(limits, limit, options), message);
  }
  assert.throws(() => new RateLimits([], { path: "/dev/shm/unnamed" }).route("5/day"), /name: a limit on a route that processes share needs a name/);
  assert.throws(() => forExpress({}, "5/minute"), /limits: expected RateLimits/);
  for (const [limit, shown] of [[undefined, "undefined"], [null, "null"], [5, "5"], [{ name: "a" }, "an object"]]) {
    assert.throws(() => forExpress(limits, limit, { name: "a" }), new RegExp(`limit: ${shown} is no limit; expected a text such as 5/minute`));
  }
  assert.throws(() => forExpress(limits, 5), /limit: 5 is no limit/);
});
