// Limiters: decisions, arguments, processes and worker threads.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import test from "node:test";
import { Worker } from "node:worker_threads";
import { EarrrlStore, Limiter } from "earrrl";
import { newPath } from "./helpers.mjs";

const require = createRequire(import.meta.url);
const RULES = ["recent-average 0.05/h half-life=1h strict", "exponential 5/1d", "token-bucket 5 refill=1/d", "gcra 5/d burst=5",
  "fixed-window 5/100d", "sliding-log 5/1d", "sliding-window 5/1d", "sliding-counter 5/100d"];

for (const rule of RULES) {
  test(`decisions of ${rule}`, () => {
    const limiter = new Limiter(rule);
    const first = limiter.check("alice");
    assert.ok(first.allowed && first.outcome === "allow" && first.retryAfter === 0);
    while (limiter.check("alice").allowed) assert.ok(limiter.peek("bob").allowed);
    const denied = limiter.peek("alice");
    assert.ok(!denied.allowed && denied.outcome === "deny" && denied.remaining === 0);
    assert.ok(denied.retryAfter > 0 && denied.resetAfter > 0 && denied.limit > 0);
    assert.ok(first.allowed, "a decision keeps its figures");
    limiter.reset("alice");
    assert.ok(limiter.check(Buffer.from("alice")).allowed);
  });
}

test("costs, charges and refunds", () => {
  const limiter = new Limiter("token-bucket 10 refill=1/d", { maxCost: 100 });
  assert.equal(limiter.check("a", 2.5).remaining, 7);
  assert.ok(!limiter.check("a", 8).allowed);
  const { at } = limiter.check("a", 7);
  limiter.refund("a", 7, at);
  assert.ok(limiter.peek("a", 7).allowed);
  assert.ok(!limiter.charge("a", 30).allowed);
  assert.ok(limiter.peek("a").retryAfter > 22 * 86_400_000);
  assert.equal(limiter.check("b", 11).retryAfter, Infinity);
});

test("headers", () => {
  const limiter = new Limiter("gcra 0.1/s burst=2", { name: "login" });
  const policy = { "RateLimit-Policy": '"login";q=2;w=20' };
  assert.deepEqual(limiter.check("a").headers(), { ...policy, RateLimit: '"login";r=1;t=10' });
  assert.deepEqual(limiter.check("a").headers(), { ...policy, RateLimit: '"login";r=0;t=10' });
  assert.deepEqual(limiter.check("a").headers(), { ...policy, RateLimit: '"login";r=0;t=10', "Retry-After": "10" });
  assert.deepEqual(limiter.check("a", 3).headers(), { ...policy, RateLimit: '"login";r=0' });
});

test("processes share a file", () => {
  const path = join(newPath(), "login");
  const code = `const { Limiter } = require(${JSON.stringify(require.resolve("earrrl"))});
    const limiter = new Limiter("gcra 100/d burst=100", { path: ${JSON.stringify(path)} });
    let allowed = 0; for (let turn = 0; turn < 70; turn++) allowed += limiter.check("alice").allowed;
    console.log(allowed); process.kill(process.pid, "SIGKILL")`;
  for (const expected of ["70\n", "30\n"]) {
    assert.throws(() => execFileSync(process.execPath, ["-e", code]), (error) => error.signal === "SIGKILL" && String(error.stdout) === expected);
  }
  assert.ok(!new Limiter("gcra 100/d burst=100", { path }).check("alice").allowed);
});

test("worker threads share a file", async () => {
  const path = join(newPath(), "login");
  const code = `const { Limiter } = require(${JSON.stringify(require.resolve("earrrl"))});
    const limiter = new Limiter("gcra 100/d burst=100", { path: ${JSON.stringify(path)} });
    let allowed = 0; for (let turn = 0; turn < 70; turn++) allowed += limiter.check("alice").allowed;
    require("node:worker_threads").parentPort.postMessage(allowed)`;
  const counts = Array.from({ length: 4 }, () => new Promise((done) => new Worker(code, { eval: true }).once("message", done)));
  assert.equal((await Promise.all(counts)).reduce((sum, count) => sum + count), 100);
});

test("refused arguments", () => {
  assert.throws(() => new Limiter("recent-average 1/s half-life=0s"), { message: "column 30: half-life: 0ns is not from 1ms to ten years (3660d)" });
  assert.throws(() => new Limiter("gcra 1/s burst=9", { action: "ban" }), /action: "ban" is not deny/);
  assert.throws(() => new Limiter("gcra 1/s burst=9", { action: "delay" }), /maxDelay/);
  assert.throws(() => new Limiter("gcra 1/s burst=9", { name: "Login" }), /name: `Login`/);
  for (const capacity of [0, -1, 1.5, NaN, 2 ** 32]) {
    assert.throws(() => new Limiter("gcra 1/s burst=9", { capacity }), /capacity: .* is not a whole number from 1 to 4294967295/);
    assert.throws(() => new EarrrlStore({ capacity }).init({ windowMs: 1000 }), /capacity/);
  }
  const limiter = new Limiter("gcra 1/s burst=9", { maxCost: 10 });
  assert.throws(() => limiter.check("a", -1), /cost: `-1` is not a number from 0 to 1e18/);
  assert.throws(() => limiter.check("a", NaN), /cost: `NaN`/);
  assert.throws(() => limiter.check("a", 11), /cost: 11 is above the rule's max_cost of 10/);
  for (const key of [undefined, null, 1, {}, [], Symbol("a"), 1n]) assert.throws(() => limiter.check(key));
  for (const cost of ["1", {}, 1n]) assert.throws(() => limiter.check("a", cost));
  assert.ok(limiter.check("k".repeat(50_000_000)).allowed);
});
