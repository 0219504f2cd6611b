// The vectors of testdata/, which the library's own tests use too.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { Limiter } from "earrrl";

const vectors = (name) => JSON.parse(readFileSync(join(process.env.EARRRL_ROOT, "testdata", "vectors", `${name}.json`), "utf8"));
const SECOND = 1_000_000_000;
// Vectors count from 0, and a limiter's windows from the epoch: a whole number of days.
const START = 20_000n * 86_400n * BigInt(SECOND);
const instant = (seconds) => START + BigInt(Math.round(seconds * SECOND));
const isNear = (found, expected, message) => assert.ok(found === expected || Math.abs(found - expected) <= 1e-9 * Math.abs(expected) + 1e-6, `${message}: ${found}, not ${expected}`);
const nanos = (millis) => Math.round(millis * 1e6);

test("gcra", () => {
  const limiter = new Limiter("gcra 1/s burst=5");
  const { steps } = vectors("gcra");
  assert.ok(steps.length > 10);
  for (const [at, cost, allowed, remaining, resetAfter, retryAfter] of steps) {
    const decision = limiter.checkAt("key", START + BigInt(at), cost);
    assert.deepEqual([decision.allowed, decision.remaining, nanos(decision.resetAfter)], [allowed, remaining, resetAfter]);
    assert.equal(decision.allowed || decision.retryAfter === Infinity ? -1 : nanos(decision.retryAfter), retryAfter);
  }
});

for (const { name, capacity, refill, events } of vectors("weighted_credits").cases) {
  test(`credit pool: ${name}`, () => {
    const limiter = new Limiter(`credit-pool ${capacity} refill=${refill[0]}/${refill[1]}s`);
    for (const [at, cost, , allowed, balance, retryAfter, fullAfter] of events) {
      const decision = limiter.checkAt("key", instant(at), cost);
      assert.deepEqual([decision.allowed, decision.remaining], [allowed, Math.floor(balance + 1e-9)]);
      isNear(decision.retryAfter / 1000, retryAfter ?? Infinity, "retryAfter");
      isNear(decision.resetAfter / 1000, fullAfter, "resetAfter");
    }
  });
}

for (const { rule, gap_s: gap, cost, requests, rows } of vectors("exponential").cases) {
  test(`${rule} every ${gap} s`, () => {
    const limiter = new Limiter(rule);
    const period = Number(/\/(\d+)s/.exec(rule)[1]);
    const expected = new Map(rows.map(([place, ...row]) => [place, row]));
    for (let place = 0; place < requests; place++) {
      const decision = limiter.checkAt("key", instant(place * gap), cost);
      if (!expected.has(place)) continue;
      const [rate, allowed] = expected.get(place);
      assert.equal(decision.allowed, allowed, `request ${place}`);
      isNear(decision.rate, rate / period, `request ${place}`);
    }
  });
}

const WINDOWS = {
  fixed: ({ quota, window_s: window }) => `fixed-window ${quota}/${window}s`,
  sliding_log: ({ quota, window_s: window }) => `sliding-log ${quota}/${window}s`,
  sliding_log_count_denied: ({ quota, window_s: window }) => `sliding-log ${quota}/${window}s strict`,
  hybrid60: ({ quota, window_s: window, sub_windows: parts }) => `sliding-window ${quota}/${window}s sub-windows=${parts} lenient`,
  hybrid61: ({ quota, window_s: window, sub_windows: parts }) => `sliding-window ${quota}/${window}s sub-windows=${parts} harsh`,
};

for (const [kind, rule] of Object.entries(WINDOWS)) {
  const cases = vectors("sliding").cases.filter(({ decisions }) => decisions?.[kind]);
  assert.ok(cases.length > 0);
  for (const own of cases) {
    test(`${kind}: ${own.name}`, () => {
      const limiter = new Limiter(rule(own));
      const admitted = own.times_ms.map((at) => Number(limiter.checkAt("key", START + BigInt(at) * 1_000_000n).allowed));
      assert.equal(admitted.join(""), own.decisions[kind]);
    });
  }
}
