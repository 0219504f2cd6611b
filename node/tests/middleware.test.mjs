// The middlewares for Express, Fastify, Hono and Koa, with the real frameworks.
import assert from "node:assert/strict";
import { once } from "node:events";
import test from "node:test";
import { serve as serveHono } from "@hono/node-server";
import * as earrrl from "earrrl";
import * as forExpress from "earrrl/express";
import * as forFastify from "earrrl/fastify";
import * as forHono from "earrrl/hono";
import * as forKoa from "earrrl/koa";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import { newPath } from "./helpers.mjs";

const charge = ({ settlement }) => settlement?.charge(2);
const frameworks = {
  express: async (limits, options) => {
    const app = express();
    app.use(forExpress.rateLimit(limits, options));
    app.use((request, response) => (charge(request.earrrl), response.send(request.earrrl.verdict?.rule ?? "hello")));
    const server = app.listen(0, "127.0.0.1");
    await once(server, "listening");
    return server;
  },
  fastify: async (limits, options) => {
    const app = Fastify({ forceCloseConnections: true });
    app.register(forFastify.rateLimit(limits, options));
    app.get("/*", async (request) => (charge(request.earrrl), "hello"));
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: async (limits, options) => {
    const app = new Hono();
    app.use(forHono.rateLimit(limits, options));
    app.get("/*", (context) => (charge(context.get("earrrl")), context.text("hello")));
    const server = serveHono({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    await once(server, "listening");
    return server;
  },
  koa: async (limits, options) => {
    const app = new Koa();
    app.silent = true;
    app.use(forKoa.rateLimit(limits, options));
    app.use((context) => (charge(context.state.earrrl), (context.body = "hello")));
    const server = app.listen(0, "127.0.0.1");
    await once(server, "listening");
    return server;
  },
};
const { RateLimits } = earrrl;
const GCRA = "gcra 1/h burst=10";

test("the default exports are the middlewares, and all of the package", () => {
  for (const module of [forExpress, forFastify, forHono, forKoa]) assert.equal(module.default, module.rateLimit);
  assert.deepEqual(Object.keys(earrrl.default).sort(), Object.keys(earrrl).filter((name) => name !== "default").sort());
});

for (const [name, serve] of Object.entries(frameworks)) {
  async function answers(rules, requests, options, own) {
    const server = await serve(new RateLimits(rules, options), own);
    try {
      const found = [];
      for (const [path, headers] of requests) {
        const response = await fetch(`http://127.0.0.1:${server.address().port}${path}`, { headers: { connection: "close", ...headers } });
        const type = response.headers.get("content-type");
        found.push({ status: response.status, limit: response.headers.get("ratelimit"), type, text: await response.text() });
      }
      return found;
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }
  const limitsOf = async (...input) => (await answers(...input)).map(({ limit }) => limit);

  test(`${name}: denials are problems`, async () => {
    const [first, second] = await answers([{ name: "address", limit: "gcra 1/h burst=1" }], [["/"], ["/"]]);
    assert.deepEqual([first.status, first.limit, first.text], [200, '"address";r=0;t=3600', "hello"]);
    assert.deepEqual([second.status, second.limit, second.type], [429, '"address";r=0;t=3600', "application/problem+json"]);
    const own = { respond: () => ({ type: "text/plain", body: "no" }) };
    assert.equal((await answers([{ name: "a", limit: "gcra 1/h burst=1" }], [["/"], ["/"]], {}, own))[1].text, "no");
  });

  test(`${name}: addresses behind proxies, and keys`, async () => {
    const requests = ["192.0.2.7", "192.0.2.8", "192.0.2.7"].map((address) => ["/", { "x-forwarded-for": address, "x-api-key": address }]);
    const expected = ['"a";r=9;t=32400', '"a";r=9;t=32400', '"a";r=8;t=28800'];
    assert.deepEqual(await limitsOf([{ name: "a", limit: GCRA }], requests, { trustedProxies: ["127.0.0.0/8"] }), expected);
    assert.deepEqual(await limitsOf([{ name: "a", limit: GCRA, key: ["path", "header:x-api-key"] }], requests), expected);
    const call = (request) => request.headers?.["x-api-key"] ?? request.req.header("x-api-key");
    assert.deepEqual(await limitsOf([{ name: "a", limit: GCRA, key: call }], requests), expected);
  });

  test(`${name}: costs, exemptions and the first plan that applies`, async () => {
    const at = (path) => (request) => (request.req ?.path ?? request.url) === path;
    const plan = (name) => ({ name, limit: "gcra 1/h burst=20", applies: at("/paid") });
    const rule = { name: "a", limit: GCRA, cost: (request) => (at("/big")(request) ? 6 : 1), exempt: at("/free"), plans: [plan("z"), plan("b")] };
    const found = await limitsOf([rule], [["/big"], ["/free"], ["/paid"], ["/"]]);
    assert.deepEqual(found, ['"a";r=4;t=14400', null, '"z";r=19;t=68400', '"a";r=3;t=10800']);
  });

  test(`${name}: later costs`, async () => {
    const after = { name: "a", limit: GCRA, costAfter: (status) => (status === 200 ? 3 : 0) };
    assert.equal((await limitsOf([after], [["/"], ["/"]]))[1], '"a";r=5;t=18000');
    assert.equal((await limitsOf([{ name: "a", limit: GCRA, settled: true }], [["/"], ["/"]]))[1], '"a";r=6;t=21600');
  });
}

test("a function gives clients limits while requests go on", async () => {
  let text;
  const rule = { limit: "fixed-window 3/30d", key: "everyone", limitBy: () => text };
  const limits = new RateLimits([{ name: "a", ...rule }], { alwaysVerdict: true });
  const route = limits.route(rule.limit, { key: "everyone", limitBy: async () => text });
  const asks = [() => limits.judge("GET", "/", {}, undefined, {}), () => route.judgeLater("GET", "/", {}, undefined, {})];
  for (const ask of asks) {
    for (const [limit, quota, remaining] of [[undefined, 3, 2], ["fixed-window 5/30d", 5, 3], ["4 per 30 days", 4, 1], ["fixed-window 9/29d", 9, 8], [null, 3, 2]]) {
      text = limit;
      const { verdict } = (await ask()).enter();
      assert.equal(verdict.remaining, remaining, limit);
      assert.match(verdict.headers()["RateLimit-Policy"], new RegExp(`;q=${quota};`));
    }
    for (const [limit, problem] of [["5/fortnight", /the limit of a request: /], ["concurrent 9 timeout=1m", /reserve/], [5, /limitBy: limitBy returned 5; expected the text/]]) {
      text = limit;
      await assert.rejects(async () => ask(), problem);
    }
  }
});

test("several rules read the header of a single proxy", () => {
  const rules = [{ name: "a", limit: "gcra 1/h burst=1" }, { name: "b", limit: "gcra 9/h burst=9" }];
  const limits = new RateLimits(rules, { trustedProxies: ["10.0.0.1"], source: "x-real-ip" });
  const status = (address) => limits.judge("GET", "/", { "x-real-ip": address }, "10.0.0.1", {}).status;
  assert.deepEqual(["192.0.2.7", "192.0.2.8", "192.0.2.7"].map(status), [undefined, undefined, 429]);
});

const asynchronous = async () => false;
const OPTIONS = [(call) => ({ exempt: call }), (call) => ({ key: call }), (call) => ({ key: ["client", call] }), (call) => ({ cost: call }),
  (call) => ({ costAfter: call }), (call) => ({ plans: [{ name: "b", limit: GCRA, applies: call }] }), (call) => ({ limitBy: call })];

test("asynchronous functions are refused", () => {
  for (const call of [asynchronous, async function* generating() {}, async function named() {}]) {
    for (const option of OPTIONS) {
      assert.throws(() => new RateLimits([{ name: "a", limit: GCRA, ...option(call) }]), /^TypeError: (exempt|key|cost|costAfter|plan b|limitBy): \w+ is asynchronous; expected a function/);
    }
  }
});

test("promises that functions return are refused", () => {
  for (const option of OPTIONS) {
    const limits = new RateLimits([{ name: "a", limit: GCRA, ...option(function sneaky() { return asynchronous(); }) }]);
    const serve = () => limits.judge("GET", "/", {}, undefined, {}).leave(200, {});
    for (let turn = 0; turn < 2; turn++) assert.throws(serve, /^TypeError: (exempt|key|cost|costAfter|plans|limitBy): sneaky returned a promise; expected a value/);
  }
});

test("plain ids are keys, and true and false are costs", () => {
  for (const key of ["a", 7, 7n, Buffer.from("a")]) {
    const limits = new RateLimits([{ name: "a", limit: "gcra 1/h burst=1", key: () => key }]);
    const status = () => limits.judge("GET", "/", {}, undefined, {}).status;
    assert.deepEqual([status(), status()], [undefined, 429]);
    limits.reset("a", key);
    assert.equal(status(), undefined);
  }
  const limits = new RateLimits([{ name: "a", limit: "gcra 1/h burst=2", cost: () => false, costAfter: (status) => status === 401 }]);
  for (const allowed of [true, true, true, false]) {
    const judged = limits.judge("GET", "/", {}, "10.0.0.1", {});
    assert.equal(judged.status === undefined, allowed);
    judged.leave?.(401, {});
  }
});

test("clients of a rule", () => {
  const limits = new RateLimits([{ name: "a", limit: GCRA, key: () => "alice", cost: 6 }], { alwaysVerdict: true });
  const enter = () => limits.judge("GET", "/", {}, undefined, {}).enter().verdict;
  assert.equal(enter().remaining, 4);
  limits.refund("a", "alice", 6);
  const { rule, remaining } = enter();
  assert.deepEqual([rule, remaining], ["a", 4]);
  limits.reset("a", "alice");
  assert.equal(enter().remaining, 4);
  for (const work of [() => limits.refund("b", "c"), () => limits.reset("b", "c")]) assert.throws(work, /neither a rule nor a plan is called "b"/);
});

test("refused options", () => {
  for (const rule of [{ key: "cleint" }, { key: [] }, { missing: 200 }, { limit: "gcra" }, { exempt: true }, { key: [1] }]) {
    assert.throws(() => new RateLimits([{ name: "a", limit: GCRA, ...rule }]));
  }
  for (const options of [{ status: 200 }, { status: 1000 }, { trustedProxies: ["10"] }]) {
    assert.throws(() => new RateLimits([{ name: "a", limit: GCRA }], options));
  }
  // A conversion to 32 bits would make others of them.
  for (const name of ["capacity", "hops", "ipv4Prefix", "ipv6Prefix"]) {
    for (const value of [-1, 1.5, NaN, 2 ** 32 + 1]) {
      assert.throws(() => new RateLimits([{ name: "a", limit: GCRA }], { [name]: value }), new RegExp(`${name}: .* is not a whole number from`));
    }
  }
  for (const value of [-1, 429.5, 2 ** 32 + 429]) {
    assert.throws(() => new RateLimits([{ name: "a", limit: GCRA }], { status: value }), /status: .* is not a whole number from 400 to 999/);
    assert.throws(() => new RateLimits([{ name: "a", limit: GCRA, missing: value }]), /missing: .* is not a whole number from 400 to 999/);
  }
});

test("another algorithm in a path is warned of", async () => {
  const [path, warned] = [newPath(), once(process, "warning")];
  const limits = [GCRA, GCRA, "fixed-window 10/1h"].map((limit) => new RateLimits([{ name: "login", limit }], { path }));
  const [warning] = await warned;
  assert.match(warning.message, /^rule login: begins afresh, since `token-bucket 10 refill=1\/h` had other states/);
  assert.equal(limits.length, 3);
});
