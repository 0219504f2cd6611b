// No spelling of a path evades a limit: all that reach a handler are counted under one key. And keys by route.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
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

const lines = readFileSync(join(process.env.EARRRL_ROOT, "testdata/paths/spellings.txt"), "utf8").split("\n");
const shown = lines.filter((line) => line && !line.startsWith("#")).map((line) => line.split(/\s/)[0]);
const targets = shown.map((text) => Buffer.from(text.replace(/\{(..)\}/g, (_, byte) => String.fromCharCode(parseInt(byte, 16))), "latin1"));

const listening = async (server) => (await once(server, "listening"), server);
const withExpress = (framework) => (limits) => {
  const app = framework();
  app.use(forExpress(limits));
  app.get("/v1/login", (request, response) => response.send("REACHED"));
  return listening(app.listen(0, "127.0.0.1"));
};
// A service whose login is below a prefix, with the middleware before the prefix is taken from the path, or after it.
const withKoa = (use) => (limits) => {
  const app = new Koa();
  const part = new Koa();
  const router = new Router().get("/login", (context) => void (context.body = "REACHED"));
  use(app, part, forKoa(limits));
  app.use(mount("/v1", part.use(router.routes())));
  return listening(app.listen(0, "127.0.0.1"));
};
const services = {
  express: withExpress(express),
  "express 4": withExpress(express4),
  koa: withKoa((app, part, limit) => app.use(limit)),
  "koa in a mounted application": withKoa((app, part, limit) => part.use(limit)),
  fastify: async (limits) => {
    const app = Fastify({ forceCloseConnections: true, ignoreTrailingSlash: true, caseSensitive: false, ignoreDuplicateSlashes: true });
    app.register(forFastify(limits));
    app.get("/v1/login", () => "REACHED");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: (limits) => {
    const app = new Hono({ strict: false });
    app.use(forHono(limits));
    app.get("/v1/login", (context) => context.text("REACHED"));
    return listening(serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }));
  },
  "node:http": (limits) => {
    const limit = forExpress(limits);
    const handle = (request, response) => {
      const reached = URL.canParse(request.url, "http://a.example") && new URL(request.url, "http://a.example").pathname === "/v1/login";
      response.end(reached ? "REACHED" : "");
    };
    return listening(createServer((request, response) => limit(request, response, () => handle(request, response))).listen(0, "127.0.0.1"));
  },
};

async function answer(port, target) {
  const socket = connect(port, "127.0.0.1");
  socket.end(Buffer.concat([Buffer.from("GET "), target, Buffer.from(" HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")]));
  const parts = [];
  try {
    for await (const part of socket) parts.push(part);
  } catch {
    // A rejected request may be answered by a connection reset.
  }
  return Buffer.concat(parts).toString("latin1");
}

for (const [name, serveWith] of Object.entries(services)) {
  test(`${name}: spellings of a path count together`, async () => {
    const rules = [{ name: "key", limit: "fixed-window 9999/100d", key: ["client", "path"] }, { name: "paths", limit: "fixed-window 9999/100d", paths: "/v1/login" }];
    const server = await serveWith(new RateLimits(rules));
    // Of node:http, nothing says where the path of a target begins, so that it has one key or another.
    const seen = name === "node:http" ? { paths: [] } : { key: [], paths: [] };
    try {
      for (const [place, target] of targets.entries()) {
        const received = await answer(server.address().port, target);
        if (!received.includes("REACHED")) continue;
        for (const rule of Object.keys(seen)) {
          const left = new RegExp(`"${rule}";r=(\\d+)`).exec(received);
          assert.ok(left, `${name} serves ${shown[place]} uncounted`);
          seen[rule].push(Number(left[1]));
        }
      }
    } finally {
      server.closeAllConnections?.();
      server.close();
    }
    assert.ok(targets.length > 123 && seen.paths.length >= 8, String(seen.paths.length));
    for (const left of Object.values(seen)) {
      assert.deepEqual(left, [...new Set(left)].sort((one, other) => other - one), `${name} has several keys`);
    }
  });
}

const ROUTES = { name: "route", limit: "gcra 1/h burst=2", key: ["client", "route"] };
const routedByExpress = (framework) => (limits) => {
  const app = framework();
  app.get("/users/:user", forExpress(limits), (request, response) => response.send("hello"));
  return listening(app.listen(0, "127.0.0.1"));
};
const routed = {
  express: routedByExpress(express),
  "express 4": routedByExpress(express4),
  koa: (limits) => {
    const router = new Router().use(forKoa(limits));
    router.get("/users/:user", (context) => void (context.body = "hello"));
    return listening(new Koa().use(router.routes()).listen(0, "127.0.0.1"));
  },
  fastify: async (limits) => {
    const app = Fastify({ forceCloseConnections: true });
    app.register(forFastify(limits));
    app.get("/users/:user", () => "hello");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: (limits) => {
    const app = new Hono();
    app.use(forHono(limits));
    app.get("/users/:user", (context) => context.text("hello"));
    return listening(serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }));
  },
};

for (const [name, serveWith] of Object.entries(routed)) {
  test(`${name}: keys by route`, async () => {
    const server = await serveWith(new RateLimits([ROUTES]));
    try {
      const statuses = [];
      for (const path of ["/users/1", "/none", "/users/2", "/users/3", "/other"]) {
        const received = await answer(server.address().port, Buffer.from(path));
        statuses.push(Number(received.split(" ")[1]));
      }
      assert.deepEqual(statuses, [200, 404, 200, 429, 404]);
    } finally {
      server.closeAllConnections?.();
      server.close();
    }
  });
}

test("a route that is not known is an error", () => {
  assert.throws(() => new RateLimits([ROUTES]).judge("GET", "/", {}, "10.0.0.1", {}), /key: the route is not known/);
});

test("paths that are wrong", () => {
  const rule = (paths) => new RateLimits([{ name: "a", limit: "gcra 1/h burst=1", paths }]);
  assert.throws(() => rule("login"), /paths: `login`: expected a path that begins/);
  assert.throws(() => rule([5]), /paths: 5 is not a string/);
  assert.throws(() => rule(5), /paths: 5 is not an array/);
});
