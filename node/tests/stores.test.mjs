// The store for @fastify/rate-limit and the storage for @nestjs/throttler, with the real packages.
import "reflect-metadata";
import assert from "node:assert/strict";
import test from "node:test";
import fastifyRateLimit from "@fastify/rate-limit";
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { Throttle, ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import { EarrrlThrottlerStorage, fastifyStore } from "earrrl";
import Fastify from "fastify";
import { newPath } from "./helpers.mjs";

const DAY = 86_400_000;
const PLACES = { "in this process": () => undefined, "in files": newPath };

// Returns a service with a limit for all routes, those of two routes of their own, and one of a handler.
async function fastifyApp(store, options) {
  const app = Fastify();
  await app.register(fastifyRateLimit, { max: 2, timeWindow: DAY, store, ...options });
  app.get("/", () => "hello");
  app.get("/login", { config: { rateLimit: { max: 1 } } }, () => "hello");
  app.get("/other", { config: { rateLimit: { max: 1, timeWindow: () => DAY } } }, () => "hello");
  app.get("/handler", { config: { rateLimit: false }, preHandler: app.rateLimit({ max: 1 }) }, () => "hello");
  return app;
}

const statusesOf = async (app, requests) => {
  const statuses = [];
  for (const request of requests) statuses.push((await app.inject(request)).statusCode);
  return statuses;
};

for (const [place, pathOf] of Object.entries(PLACES)) {
  test(`@fastify/rate-limit: each route has its counts, ${place}`, async () => {
    const path = pathOf();
    const store = fastifyStore({ path });
    const app = await fastifyApp(store);
    assert.deepEqual(await statusesOf(app, ["/", "/", "/", "/login", "/login", "/other", "/other", "/handler", "/handler"]), [200, 200, 429, 200, 429, 200, 429, 200, 429]);
    assert.equal((await app.inject({ method: "HEAD", url: "/login" })).statusCode, 429);
    // Another process has a store of its own.
    assert.deepEqual(await statusesOf(await fastifyApp(fastifyStore({ path })), ["/", "/login", "/handler"]), path ? [429, 429, 429] : [200, 200, 200]);
  });

  test(`@nestjs/throttler: clients are blocked, ${place}`, async () => {
    const path = pathOf();
    const storage = new EarrrlThrottlerStorage({ path });
    const increment = (key, ...more) => storage.increment(key, DAY, 2, ...more, "default");
    const first = await increment("alice", DAY);
    assert.deepEqual([first.totalHits, first.isBlocked, first.timeToBlockExpire], [1, false, 0]);
    assert.ok(first.timeToExpire > 0 && first.timeToExpire <= DAY / 1000 && Number.isInteger(first.timeToExpire));
    assert.equal((await increment("alice", DAY)).isBlocked, false);
    for (let turn = 0; turn < 2; turn++) {
      const { totalHits, isBlocked, timeToBlockExpire } = await increment("alice", DAY);
      assert.deepEqual([totalHits, isBlocked, timeToBlockExpire], [3, true, DAY / 1000]);
    }
    assert.equal((await new EarrrlThrottlerStorage({ path }).increment("alice", DAY, 2, DAY, "default")).isBlocked, Boolean(path));
    // Other limits do not know the block.
    assert.equal((await storage.increment("alice", DAY, 2, DAY, "other")).isBlocked, false);
    // The block holds for requests of other lengths.
    const other = await storage.increment("alice", DAY / 2, 2, 2 * DAY, "default");
    assert.ok(other.isBlocked && other.timeToBlockExpire <= DAY / 1000);
    assert.equal((await increment("alice", 0)).isBlocked, true);
    // Without a block, a client is denied until its window ends.
    assert.deepEqual([(await increment("bob", 0)).isBlocked, (await increment("bob", 0)).isBlocked, (await increment("bob", 0)).isBlocked], [false, false, true]);
  });
}

test("@fastify/rate-limit: bans, reading and windows of length 0", async () => {
  const app = await fastifyApp(fastifyStore(), { ban: 1 });
  assert.deepEqual(await statusesOf(app, ["/", "/", "/", "/"]), [200, 200, 429, 403]);
  const store = new (fastifyStore())();
  const asked = (method, key, length) => new Promise((resolve, reject) => store[method](key, (error, count) => (error ? reject(error) : resolve(count)), length, 1));
  assert.deepEqual(await asked("read", "alice", DAY), { current: 0, ttl: 0 });
  assert.deepEqual(await asked("incr", "alice", 0), { current: 1, ttl: 0 });
  assert.deepEqual(await asked("read", "alice", 0), { current: 0, ttl: 0 });
  const { current, ttl } = await asked("incr", "alice", DAY);
  assert.ok(current === 1 && ttl > 0 && ttl <= DAY);
  assert.equal((await asked("read", "alice", DAY)).current, 1);
  await assert.rejects(asked("incr", "alice", 1.5), /timeWindow: 1.5 is not a whole number from 1 to /);
  for (let length = 1; length < 64; length++) await asked("incr", "alice", length);
  await assert.rejects(asked("incr", "alice", 64), /timeWindow: 64 is one length too many; expected at most 64 different ones/);
});

test("@fastify/rate-limit: a callback that throws is not called again", () => {
  const store = new (fastifyStore())();
  let calls = 0;
  const callback = () => {
    calls++;
    throw new Error("mine");
  };
  assert.throws(() => store.incr("alice", callback, DAY, 1), /mine/);
  assert.equal(calls, 1);
});

test("what these stores cannot do is an error at the start", async () => {
  for (const name of ["continueExceeding", "exponentialBackoff"]) {
    await assert.rejects(async () => fastifyApp(fastifyStore(), { [name]: true }), new RegExp(`${name}: true is not possible with this store`));
  }
  assert.throws(() => fastifyStore({ paht: "/dev/shm/a" }), /"paht" is not an option; expected path, capacity, prefix, clock/);
  assert.throws(() => new EarrrlThrottlerStorage({ paht: "/dev/shm/a" }), /"paht" is not an option; expected path, capacity, prefix, clock/);
});

test("keys of other types are errors, since they would be one client", async () => {
  const statuses = [];
  for (const [key, shown] of [[undefined, "undefined"], [{}, "an object"], [null, "null"], [1.5, "1.5"], [() => 1, "a function"]]) {
    const app = await fastifyApp(fastifyStore(), { keyGenerator: () => key });
    const { statusCode, body } = await app.inject("/");
    statuses.push(statusCode);
    assert.match(body, new RegExp(`key: keyGenerator returned ${shown}; expected a string, a whole number or a bigint`));
    await assert.rejects(new EarrrlThrottlerStorage().increment(key, DAY, 1, 0, "default"), new RegExp(`key: generateKey returned ${shown}`));
  }
  assert.deepEqual(statuses, Array(5).fill(500));
  const app = await fastifyApp(fastifyStore(), { keyGenerator: () => 7n });
  assert.deepEqual(await statusesOf(app, ["/", "/", "/"]), [200, 200, 429]);
});

test("@nestjs/throttler counts in the storage", async () => {
  class Pages {
    home() {
      return "hello";
    }

    login() {
      return "hello";
    }
  }
  const routes = { home: [Get("/")], login: [Get("/login"), Throttle({ default: { limit: 1, ttl: DAY } })] };
  for (const [name, decorators] of Object.entries(routes)) {
    for (const decorate of decorators) decorate(Pages.prototype, name, Object.getOwnPropertyDescriptor(Pages.prototype, name));
  }
  Controller()(Pages);
  class Service {}
  const throttlers = [{ limit: 2, ttl: DAY }];
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers, storage: new EarrrlThrottlerStorage() })],
    controllers: [Pages],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(Service);
  const app = await NestFactory.create(Service, { logger: false });
  await app.listen(0, "127.0.0.1");
  try {
    const statuses = [];
    for (const path of ["/", "/", "/", "/login", "/login"]) statuses.push((await fetch(`http://127.0.0.1:${app.getHttpServer().address().port}${path}`)).status);
    assert.deepEqual(statuses, [200, 200, 429, 200, 429]);
  } finally {
    await app.close();
  }
});
