// The clocks that tests of applications move: for limiters, engines, middlewares, limits on routes and stores.
import "reflect-metadata";
import assert from "node:assert/strict";
import { once } from "node:events";
import test from "node:test";
import fastifyRateLimit from "@fastify/rate-limit";
import { EarrrlStore, EarrrlThrottlerStorage, Engine, Limiter, ManualClock, RateLimits, fastifyStore } from "earrrl";
import { rateLimit as forExpress } from "earrrl/express";
import { rateLimit as forFastify } from "earrrl/fastify";
import { rateLimit as forHono } from "earrrl/hono";
import { rateLimit as forKoa } from "earrrl/koa";
import express from "express";
import { rateLimit as expressRateLimit } from "express-rate-limit";
import Fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import { newPath } from "./helpers.mjs";

const MINUTE = 60_000;
const DAY = 86_400_000;
const START = 1_800_000_000_000;

// The two clocks, each with the function that moves it. The system's timers are left as they are.
const CLOCKS = {
  "a clock that is moved": () => {
    const clock = new ManualClock(START);
    return { clock, move: (millis) => clock.advance(millis), now: () => clock.now() };
  },
  "a clock that follows Date.now": (context) => {
    let time = START;
    replaceDate(context, () => time);
    return { clock: "Date.now", move: (millis) => (time += millis), now: () => time };
  },
};

// Calls `then` with a function that gets the answer of a service to a request.
async function served(app, then) {
  const server = app.server ?? app.listen(0, "127.0.0.1");
  if (app.server) await app.listen({ port: 0, host: "127.0.0.1" });
  else await once(server, "listening");
  try {
    await then((path = "/") => fetch(`http://127.0.0.1:${server.address().port}${path}`, { headers: { connection: "close" } }));
  } finally {
    server.close();
  }
}

// Replaces `Date` until the end of a test, as libraries for tests do: its `now` calls a function.
function replaceDate(context, now) {
  const { Date } = globalThis;
  globalThis.Date = class extends Date {
    static now() {
      return now();
    }
  };
  context.after(() => (globalThis.Date = Date));
}

test("a clock stands still until it is moved", () => {
  const clock = new ManualClock(START + 0.5);
  clock.advance(0.25);
  assert.equal(clock.now(), START + 0.75);
  // By default, it begins with today, and so does every window of up to a day.
  assert.equal(new ManualClock().now() % DAY, 0);
  assert.ok(Math.abs(Date.now() - new ManualClock().now()) < 2 * DAY);
});

test("wrong times and clocks", () => {
  for (const wrong of [-1, NaN, 1e300]) {
    assert.throws(() => new ManualClock(wrong), /start: .* is not a number of milliseconds from 0/);
    assert.throws(() => new ManualClock().advance(wrong), /milliseconds: .* is not a number of milliseconds from 0/);
  }
  assert.throws(() => new ManualClock().advance("5"), /milliseconds: "5" is not a number/);
  const makers = [(options) => new Limiter("5/m", options), (options) => new Engine({}, options), (options) => new RateLimits([], options), (options) => new EarrrlStore(options), fastifyStore, (options) => new EarrrlThrottlerStorage(options)];
  for (const make of makers) {
    for (const [clock, shown] of [["Date", '"Date"'], [5, "5"], [{}, "an object"], [new Limiter("5/m"), "an object"]]) {
      assert.throws(() => make({ clock }), { message: `clock: ${shown} is not a ManualClock or "Date.now"` });
    }
    assert.throws(() => make({ path: newPath(), clock: new ManualClock() }), /clock: processes that share a path have the system's clock; expected one of both/);
  }
});

test("what Date.now returns is checked, and what it throws is thrown", (context) => {
  const limiter = new Limiter("5/m", { clock: "Date.now" });
  let now;
  replaceDate(context, () => now());
  for (const wrong of [-5, NaN]) {
    now = () => wrong;
    assert.throws(() => limiter.check("alice"), /Date\.now: .* is not a number of milliseconds from 0/);
  }
  now = () => {
    throw new Error("mine");
  };
  assert.throws(() => limiter.check("alice"), /mine/);
  now = () => START;
  assert.ok(limiter.check("alice").allowed);
});

test("a Date.now that goes back stands still", (context) => {
  let now = START;
  replaceDate(context, () => now);
  const limiter = new Limiter("gcra 1/m burst=1", { clock: "Date.now" });
  assert.ok(limiter.check("alice").allowed);
  now = START - DAY;
  assert.ok(!limiter.check("alice").allowed);
  now = START - DAY + MINUTE;
  assert.ok(limiter.check("alice").allowed);
});

for (const [kind, clockOf] of Object.entries(CLOCKS)) {
  for (const rule of ["fixed-window 5/1m", "gcra 5/m burst=5", "sliding-log 5/1m", "recent-average 5/m half-life=1m", "token-bucket 5 refill=5/m"]) {
    test(`${kind}: limiters and engines, ${rule}`, (context) => {
      const { clock, move } = clockOf(context);
      const limiter = new Limiter(rule, { clock });
      const engine = new Engine({ login: rule }, { clock });
      for (const check of [(key) => limiter.check(key), (key) => engine.check({ login: key })]) {
        const allowed = Array.from({ length: 50 }, () => check("alice")).filter((decision) => decision.allowed).length;
        assert.ok(allowed >= 5 && allowed < 20);
        assert.ok(!check("alice").allowed);
      }
      move(3_600_000);
      assert.ok(limiter.check("alice").allowed && engine.check({ login: "alice" }).allowed);
    });
  }

  test(`${kind}: refunds`, (context) => {
    const { clock, move } = clockOf(context);
    const rule = "gcra 1/m burst=1";
    const limiter = new Limiter(rule, { clock });
    const engine = new Engine({ login: rule }, { clock });
    const limits = new RateLimits([{ name: "login", limit: rule }], { clock });
    limiter.check("alice");
    engine.check({ login: "alice" });
    const judge = () => limits.judge("GET", "/", {}, "192.0.2.7", {}).status ?? 200;
    assert.deepEqual([judge(), judge()], [200, 429]);
    move(MINUTE / 2);
    limiter.refund("alice");
    engine.refund({ login: "alice" });
    limits.refund("login", "192.0.2.7");
    assert.ok(limiter.check("alice").allowed && engine.check({ login: "alice" }).allowed);
    assert.equal(judge(), 200);
  });

  test(`${kind}: middlewares and limits on routes`, async (context) => {
    const { clock, move } = clockOf(context);
    const limits = () => new RateLimits([{ name: "address", limit: "4/minute" }], { clock });
    const onExpress = express().use(forExpress(limits()));
    const onFastify = Fastify({ forceCloseConnections: true }).register(forFastify(limits()));
    const onHono = new Hono().use(forHono(limits(), { peer: () => "192.0.2.7" }));
    const onKoa = new Koa().use(forKoa(limits()));
    const routes = limits();
    onExpress.get("/route", forExpress(routes, "2/minute"), (request, response) => response.send("hello"));
    onExpress.get("/", (request, response) => response.send("hello"));
    onFastify.after(() => onFastify.get("/", () => "hello"));
    onFastify.after(() => onFastify.get("/route", { config: { rateLimit: "2/minute" } }, () => "hello"));
    onHono.get("/", (context) => context.text("hello")).get("/route", forHono(routes, "2/minute", { peer: () => "192.0.2.7" }), (context) => context.text("hello"));
    const onKoaRoute = forKoa(routes, "2/minute");
    onKoa.use((context, next) => (context.path === "/route" ? onKoaRoute(context, next) : next()));
    onKoa.use((context) => (context.body = "hello"));
    const allowed = async (ask) => {
      for (let minute = 0; minute < 2; minute++) {
        const statuses = [];
        for (const path of ["/route", "/route", "/route", "/", "/"]) statuses.push((await ask(path)).status);
        assert.deepEqual(statuses, [200, 200, 429, 200, 429]);
        move(MINUTE);
      }
    };
    for (const app of [onExpress, onFastify, onKoa]) await served(app, allowed);
    await allowed((path) => onHono.request(path));
  });

  test(`${kind}: the store for express-rate-limit`, async (context) => {
    const { clock, move, now } = clockOf(context);
    const store = new EarrrlStore({ clock });
    const app = express().use(expressRateLimit({ windowMs: MINUTE, limit: 2, store, validate: false }));
    app.get("/", (request, response) => response.send("hello"));
    await served(app, async (ask) => {
      for (const expected of [200, 200, 429, 200, 200, 429]) {
        const { status } = await ask();
        assert.equal(status, expected);
        if (status === 429) move(MINUTE);
      }
    });
    assert.deepEqual(await store.increment("alice"), { totalHits: 1, resetTime: new Date(now() + MINUTE) });
  });

  test(`${kind}: the store for @fastify/rate-limit`, async (context) => {
    const { clock, move } = clockOf(context);
    const app = Fastify({ forceCloseConnections: true });
    await app.register(fastifyRateLimit, { max: 2, timeWindow: MINUTE, store: fastifyStore({ clock }) });
    app.get("/", () => "hello");
    await served(app, async (ask) => {
      for (const expected of [200, 200, 429, 200, 200, 429]) {
        const { status, headers } = await ask();
        assert.equal(status, expected);
        assert.equal(headers.get("retry-after"), status === 429 ? "60" : null);
        if (status === 429) move(MINUTE);
      }
    });
  });

  test(`${kind}: the storage for @nestjs/throttler, with its blocks`, async (context) => {
    const { clock, move } = clockOf(context);
    const storage = new EarrrlThrottlerStorage({ clock });
    const increment = async () => {
      const { isBlocked, timeToBlockExpire } = await storage.increment("alice", MINUTE, 1, 5 * MINUTE, "default");
      return isBlocked && timeToBlockExpire;
    };
    assert.deepEqual([await increment(), await increment()], [false, 300]);
    move(4 * MINUTE);
    assert.equal(await increment(), 60);
    move(MINUTE);
    assert.equal(await increment(), false);
  });
}

test("a response after the end of its window takes nothing back from a window without requests", async () => {
  const clock = new ManualClock(START);
  const store = new EarrrlStore({ clock });
  store.init({ windowMs: MINUTE });
  const hits = async () => (await store.increment("alice")).totalHits;
  assert.deepEqual([await hits(), await hits()], [1, 2]);
  await store.decrement("alice");
  assert.equal(await hits(), 2);
  clock.advance(MINUTE);
  // Nothing was counted in the new window, so there is nothing to take back.
  for (let turn = 0; turn < 5; turn++) await store.decrement("alice");
  assert.equal(await store.get("alice"), undefined);
  assert.deepEqual([await hits(), await hits()], [1, 2]);
});

test("express-rate-limit takes nothing back for a response after the end of its window", async (context) => {
  let time = START;
  replaceDate(context, () => time);
  const store = new EarrrlStore({ clock: "Date.now" });
  const app = express();
  let handled;
  const waiting = new Promise((resolve) => (handled = resolve));
  app.use(expressRateLimit({ windowMs: MINUTE, limit: 5, skipFailedRequests: true, keyGenerator: () => "alice", store }));
  app.get("/fails", (request, response) => handled(response));
  app.get("/", (request, response) => response.send("hello"));
  await served(app, async (get) => {
    const late = get("/fails");
    const response = await waiting;
    time += MINUTE;
    await get();
    assert.equal((await store.get("alice")).totalHits, 1);
    response.sendStatus(500);
    assert.equal((await late).status, 500);
    assert.equal((await store.get("alice")).totalHits, 1);
  });
});
