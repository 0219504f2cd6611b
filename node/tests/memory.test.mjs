// No call leaves memory behind. EARRRL_LONG=1 makes it 10 million checks.
import assert from "node:assert/strict";
import test from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { EarrrlStore, Engine, Limiter, RateLimits } from "earrrl";

const CHECKS = process.env.EARRRL_LONG ? 10_000_000 : 100_000;
const GCRA = "gcra 5/s burst=9";
const SMALL = { capacity: 1000 };

const limiter = new Limiter(GCRA, SMALL);
const engine = new Engine({ login: GCRA, log: "sliding-log 5/1s" }, SMALL);
const limits = new RateLimits([{ name: "a", limit: GCRA, key: [() => "key", "client"], costAfter: () => 1, settled: true }], SMALL);
const store = new EarrrlStore(SMALL);
store.init({ windowMs: 1000 });

// Each work with its share of the checks.
const works = {
  check: [1, (turn) => limiter.check(`client ${turn % 5000}`).headers()],
  "check of long keys": [8, (turn) => limiter.check(`client ${turn % 5000}`.padEnd(200))],
  "check of several rules": [4, (turn) => engine.check({ login: `${turn % 5000}`, log: [Buffer.from("key"), 0.5] })],
  "count in a store": [4, (turn) => store.increment(`client ${turn % 5000}`)],
  judge: [8, (turn) => {
    const judged = limits.judge("GET", "/", { "content-type": "a" }, `10.0.0.${turn % 255}`, {});
    if (judged.status !== undefined) return assert.ok(judged.headers.length > 0 && judged.body);
    judged.enter().settlement.charge(0);
    judged.leave(200, {});
  }],
  refuse: [40, () => {
    for (const wrong of [[1.5], ["a", "b"], ["a", -1], [{}]]) assert.throws(() => limiter.check(...wrong));
  }],
};

// Objects of the native module are freed between two turns of the event loop.
async function run(count, work) {
  for (let turn = 0; turn < count; turn++) {
    const pending = work(turn);
    if (pending instanceof Promise) await pending;
    if (turn % 100 === 0) await nextTurn();
  }
}

for (const [name, [share, work]] of Object.entries(works)) {
  test(`no leak: ${name}`, async () => {
    const count = CHECKS / share;
    await run(count / 4, work);
    const before = process.memoryUsage.rss();
    await run(count, work);
    // Objects that each call leaves behind take 32 bytes at least; JavaScript's heap grows by itself.
    const grown = process.memoryUsage.rss() - before;
    assert.ok(grown < Math.max(48 << 20, 16 * count), `${grown} bytes more`);
  });
}

// A limiter takes 2.4 MB, of which JavaScript's heap has 100 bytes.
const builders = {
  Limiter: () => new Limiter(GCRA).check("a"),
  "Limiter of states": () => new Limiter("sliding-log 5/1s").check("a"),
  Engine: () => new Engine({ a: GCRA }).check({ a: "a" }),
  RateLimits: () => new RateLimits([{ name: "a", limit: GCRA }]).judge("GET", "/", {}, "10.0.0.1", {}),
  EarrrlStore: () => new EarrrlStore().increment("a"),
  "refused Limiter": () => assert.throws(() => new Limiter("gcra 5/s burst=x")),
};

for (const [name, build] of Object.entries(builders)) {
  test(`no leak: new ${name}`, async () => {
    const before = process.memoryUsage.rss();
    for (let turn = 0; turn < CHECKS / 250; turn++) {
      build();
      if (turn % 5 === 0) await nextTurn();
    }
    assert.ok(process.memoryUsage.rss() - before < 400 << 20, `${process.memoryUsage.rss() - before} bytes more`);
  });
}
