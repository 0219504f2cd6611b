// Limiters: decisions, arguments, processes and worker threads.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import test from "node:test";
import { Worker } from "node:worker_threads";
import { EarrrlStore, Engine, Limiter } from "earrrl";
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

test("denied requests are told times of their own", () => {
  const limiter = new Limiter("recent-average 1/h half-life=10h strict");
  const denied = Array.from({ length: 40 }, () => limiter.check("alice")).filter(({ allowed }) => !allowed);
  assert.ok(denied.length > 20 && new Set(denied.map(({ retryAfter }) => Math.round(retryAfter))).size === denied.length);
  assert.equal(denied[0].retryAfter, denied[0].earliest);
  assert.ok(denied.at(-1).retryAfter > denied.at(-1).earliest && denied.at(-1).earliest > denied[0].earliest);
});

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

test("a whole number is its decimal text", () => {
  for (const [key, text] of [[7, "7"], [-0, "0"], [-5n, "-5"], [2n ** 70n, "1180591620717411303424"], [2 ** 53 - 1, "9007199254740991"]]) {
    const limiter = new Limiter("gcra 1/d burst=1");
    assert.deepEqual([limiter.check(key).allowed, limiter.check(text).allowed], [true, false]);
    limiter.refund(key);
    assert.ok(limiter.check(text).allowed);
  }
  for (const key of [1.5, NaN, Infinity, 2 ** 53, true]) {
    assert.throws(() => new Limiter("gcra 1/d burst=1").check(key), /^Error: key: .* is not a string, a whole number, a BigInt or a Buffer$/);
  }
});

test("the size of a large table is an estimate", () => {
  const limiter = new Limiter("gcra 1/h burst=10", { capacity: 100_000 });
  for (let client = 0; client < 20_000; client++) limiter.check(`client ${client}`);
  assert.ok(limiter.size > 16_000 && limiter.size < 24_000, String(limiter.size));
});

test("requests of a given time", () => {
  const limiter = new Limiter("fixed-window 1/1m", { name: "log" });
  const day = 86_400 * 1e9;
  const first = limiter.checkAt("a", day);
  assert.deepEqual([first.allowed, first.at, first.rule, first.resetAfter], [true, day, "log", 60_000]);
  assert.ok(!limiter.checkAt("a", BigInt(day) + 59_999_999_999n).allowed);
  assert.ok(limiter.checkAt("a", BigInt(day) + 60_000_000_000n).allowed);
  for (const at of [-1, NaN, Infinity, 2 ** 64, -1n, 2n ** 64n]) {
    assert.throws(() => limiter.checkAt("a", at), /at: expected the nanoseconds since the epoch/);
    assert.throws(() => limiter.refund("a", 1, at), /at: expected the nanoseconds since the epoch/);
  }
});

test("all that decide or change take an instant", () => {
  const limiter = new Limiter("fixed-window 5/1d");
  const day = 86_400 * 1e9;
  for (let turn = 0; turn < 4; turn++) assert.ok(limiter.checkAt("a", day).allowed);
  assert.equal(limiter.peekAt("a", day).remaining, 1);
  const { at } = limiter.chargeAt("a", day, 3);
  assert.deepEqual([limiter.peekAt("a", day).allowed, limiter.checkAt("a", day).allowed], [false, false]);
  limiter.refundAt("a", day, 3, at);
  assert.deepEqual([limiter.checkAt("a", day).allowed, limiter.checkAt("a", day).allowed, limiter.checkAt("a", 2 * day).allowed], [true, false, true]);
});

test("several rules count a request under all or none", () => {
  const path = newPath();
  const engine = new Engine({ login: "gcra 2/d burst=2", address: "gcra 9/d burst=9" }, { path });
  const both = { login: "alice", address: ["192.0.2.7", 2] };
  assert.ok(engine.check(both).allowed && engine.check(both).allowed);
  const denied = engine.check({ login: Buffer.from("alice"), address: "192.0.2.7" });
  assert.deepEqual([denied.allowed, denied.rule, denied.headers()["RateLimit-Policy"]], [false, "login", '"login";q=2;w=86400']);
  assert.match(denied.headers().RateLimit, /^"login";r=0;t=/);
  assert.equal(engine.peek({ address: "192.0.2.7" }).remaining, 5);
  engine.refund(both);
  assert.equal(engine.peek({ address: "192.0.2.7" }).remaining, 7);
  assert.equal(engine.charge({ address: ["192.0.2.7", 10] }).rule, "address");
  const other = new Engine({ login: "gcra 2/d burst=2", address: "gcra 9/d burst=9" }, { path });
  assert.ok(!other.check({ address: "192.0.2.7" }).allowed);
  engine.reset("address", "192.0.2.7");
  assert.equal(engine.peek({ address: "192.0.2.7" }).remaining, 9);
  assert.deepEqual(engine.rules, { login: "gcra 2/d burst=2", address: "gcra 9/d burst=9" });
});

test("refused charges and engines", () => {
  const engine = new Engine({ login: "gcra 1/s burst=9" });
  assert.throws(() => engine.check({ address: "a" }), { message: 'no rule is called "address"' });
  assert.throws(() => engine.check({ login: ["a"] }), { name: "TypeError", message: "login: expected a key, or a key and a cost" });
  assert.throws(() => engine.check({ login: ["a", -1] }), /cost: `-1` is not a number/);
  assert.throws(() => engine.check({ login: "a", __proto__: null, constructor: "a" }), /no rule is called "constructor"/);
  for (const charges of [{}, { login: 1.5 }, { login: ["a", "b"] }, null, undefined, 1, "a"]) assert.throws(() => engine.check(charges));
  for (const work of [() => engine.reset("a", "b"), () => engine.refund({ a: "b" })]) assert.throws(work, /no rule is called "a"/);
  assert.throws(() => new Engine({ login: "gcra 1/x burst=9" }), /login: /);
  assert.throws(() => new Engine({ LOGIN: "gcra 1/s burst=9" }), /name: `LOGIN`/);
  assert.throws(() => new Engine({ login: "gcra 1/s burst=9" }, { capacity: 1.5 }), /capacity/);
  assert.throws(() => new Engine(null), TypeError);
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

test("a clear forgets the clients of all processes", () => {
  const path = join(newPath(), "login");
  const limiter = new Limiter("gcra 2/d burst=2", { path });
  const code = `const { Limiter } = require(${JSON.stringify(require.resolve("earrrl"))});
    const limiter = new Limiter("gcra 2/d burst=2", { path: ${JSON.stringify(path)} });
    console.log(["alice", "bob"].map((client) => [1, 2, 3].filter(() => limiter.check(client).allowed).length).join())`;
  for (const expected of ["2,2\n", "2,2\n"]) {
    assert.equal(execFileSync(process.execPath, ["-e", code], { encoding: "utf8" }), expected);
    assert.ok(!limiter.peek("alice").allowed);
    assert.deepEqual([limiter.clear(), limiter.clear(), limiter.size], [2, 0, 0]);
  }
  const alone = new Limiter("sliding-log 2/1d");
  alone.check("alice", 2);
  assert.deepEqual([alone.clear(), alone.check("alice").allowed], [1, true]);
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
  assert.throws(() => new Limiter("gcra 1/s burst=9", { maxDelay: 3 }), /maxDelay: the action is deny; only delay has one/);
  assert.throws(() => new Limiter("gcra 1/s burst=9", { name: "Login" }), /name: `Login`/);
  for (const capacity of [0, -1, 1.5, NaN, 2 ** 32]) {
    assert.throws(() => new Limiter("gcra 1/s burst=9", { capacity }), /capacity: .* is not a whole number from 1 to 4294967295/);
    assert.throws(() => new EarrrlStore({ capacity }).init({ windowMs: 1000 }), /capacity/);
  }
  const limiter = new Limiter("gcra 1/s burst=9", { maxCost: 10 });
  assert.throws(() => limiter.check("a", -1), /cost: `-1` is not a number from 0 to 1e18/);
  assert.throws(() => limiter.check("a", NaN), /cost: `NaN`/);
  assert.throws(() => limiter.check("a", 11), /cost: 11 is above the rule's max_cost of 10/);
  for (const key of [undefined, null, 1.5, {}, [], Symbol("a")]) assert.throws(() => limiter.check(key));
  for (const cost of ["1", {}, 1n]) assert.throws(() => limiter.check("a", cost));
  assert.ok(limiter.check("k".repeat(50_000_000)).allowed);
});
