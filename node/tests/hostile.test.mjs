// Hostile values for every function and option: each call returns, or throws an exception, and the process goes on.
import assert from "node:assert/strict";
import test from "node:test";
import { EarrrlStore, Engine, Limiter, RateLimits } from "earrrl";
import * as forExpress from "earrrl/express";
import * as forFastify from "earrrl/fastify";
import * as forHono from "earrrl/hono";

const CALLS = process.env.EARRRL_LONG ? 100_000 : 3000;
const GCRA = "gcra 5/s burst=9";

// Returns a function that returns whole numbers below a bound: always the same ones.
function randomNumbers(seed) {
  let state = seed;
  return (bound) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * bound);
  };
}

const thrower = () => {
  throw new RangeError("of the caller");
};
const cyclic = { name: "a", limit: GCRA };
cyclic.self = [cyclic];
const { proxy: revoked, revoke } = Proxy.revocable({}, {});
revoke();

// Makes one hostile value each time it is called, so that calls do not share what they change.
const makers = [
  ...[undefined, null, true, false, 0, -0, 1, -1, 1.5, NaN, Infinity, -Infinity, 2 ** 31, 2 ** 32, 2 ** 53, 2 ** 64, 1e308, 5e-324].map((value) => () => value),
  ...["", "a", "\0", "\ud800", "é".repeat(31), "x".repeat(63), "😀".repeat(16), "__proto__", "constructor", "../../etc/passwd", "a\r\nb", "%s%n", GCRA].map((value) => () => value),
  ...[0n, -1n, 2n ** 64n, 2n ** 70n].map((value) => () => value),
  () => "k".repeat(100_000), () => Symbol("a"), () => Symbol.iterator, () => thrower, () => async () => 1, () => class {}, () => new Date(NaN), () => /a/, () => new Map([["a", 1]]),
  () => new Error("a"), () => Promise.resolve(1), () => new WeakMap(), () => new Array(3), () => new Array(10_000).fill("a"), () => [[[[]]]], () => [cyclic], () => cyclic,
  () => Buffer.alloc(0), () => Buffer.alloc(100_000), () => new Uint8Array(3), () => new Float64Array(12), () => new DataView(new ArrayBuffer(8)), () => new SharedArrayBuffer(8),
  () => Buffer.from(new SharedArrayBuffer(8)), () => Object.create(null), () => Object.freeze({ a: 1 }), () => new Proxy({}, {}), () => new Proxy([], {}), () => revoked,
  () => new Proxy({}, { get: thrower, has: thrower, ownKeys: thrower, getOwnPropertyDescriptor: thrower }), () => new Proxy(function () {}, { apply: thrower }),
  () => ({ valueOf: thrower, toString: thrower }), () => ({ length: 2 ** 32, 0: "a" }), () => ({ then: thrower }), () => ({ get path() { return thrower(); }, get capacity() { return thrower(); }, get name() { return thrower(); } }),
  () => {
    const detached = Buffer.from(new ArrayBuffer(16));
    structuredClone(detached.buffer, { transfer: [detached.buffer] });
    return detached;
  },
];
const OPTIONS = {
  limiter: ["capacity", "action", "maxDelay", "maxCost", "name"],
  limits: ["capacity", "trustedProxies", "hops", "source", "ipv4Prefix", "ipv6Prefix", "status", "headersOnAllowed", "xRateLimit", "alwaysVerdict"],
  rule: ["name", "limit", "key", "paths", "missing", "cost", "costAfter", "settled", "exempt", "plans", "limitBy", "action", "maxDelay", "maxCost"],
};

function hostile(seed) {
  const random = randomNumbers(seed);
  const value = () => makers[random(makers.length)]();
  const values = () => Array.from({ length: random(6) }, value);
  const pick = (list) => list[random(list.length)];
  // Sensible options, of which one has a hostile value.
  const options = (kind, sane) => ({ ...sane, [pick(OPTIONS[kind])]: value() });
  // A table of a billion clients is no error where there is memory for it.
  const bounded = (own) => (typeof own.capacity === "number" && own.capacity > 1e4 ? { ...own, capacity: 1e4 } : own);
  const limiter = new Limiter(GCRA, { capacity: 1000 });
  const engine = new Engine({ login: GCRA, address: "fixed-window 9/1m" }, { capacity: 1000 });
  const limits = new RateLimits([{ name: "a", limit: GCRA, key: (request) => request, cost: (request) => request, exempt: (request) => request === 1, costAfter: (status) => status }], { capacity: 1000 });
  const store = new EarrrlStore({ capacity: 1000 });
  const call = (object, names) => object[pick(names)](...values());
  const charges = () => pick([value(), { login: value() }, { login: [value(), value()], address: value() }, { [String(random(9))]: value() }]);
  const works = [
    () => call(limiter, ["check", "checkAt", "peek", "charge", "refund", "reset"]),
    () => limiter[pick(["check", "checkAt", "refund"])]("a", value(), value()),
    () => engine[pick(["check", "peek", "charge", "refund"])](charges(), value()),
    () => call(engine, ["reset", "check", "refund"]),
    () => call(limits, ["change", "reset", "refund"]),
    () => limits.change("a", value()),
    () => {
      const judged = limits.judge(value(), value(), pick([value(), { "content-type": value() }]), value(), value());
      judged.enter?.().settlement?.charge(value());
      return judged.leave?.(value(), value());
    },
    () => limits.judge("GET", "/", {}, "10.0.0.1", value()).leave?.(value(), {}),
    () => new Limiter(value(), value()),
    () => new Limiter(GCRA, bounded(options("limiter", { capacity: 10 }))),
    () => new Engine(pick([value(), { a: value() }, { a: GCRA, [String(random(9))]: GCRA }]), { capacity: 10 }),
    () => new RateLimits(pick([value(), [value()], [options("rule", { name: "a", limit: GCRA })]]), bounded(options("limits", { capacity: 10 }))),
    () => new EarrrlStore(pick([{}, bounded({ capacity: value(), prefix: value() })])).init(pick([value(), { windowMs: value() }])),
    () => call(store, ["get", "increment", "decrement", "resetKey"]),
    () => [forExpress, forFastify, forHono].map(({ rateLimit }) => rateLimit(value(), pick([undefined, {}, value()]))),
    () => limiter.check.call(pick([value(), engine, limits]), "a"),
  ];
  return () => pick(works)();
}

const NO_MESSAGE = /^$|panic|unwrap|unreachable|index out of bounds|overflow/i;

test("hostile values throw exceptions with a message", async () => {
  const seed = Number(process.env.EARRRL_SEED ?? 2026);
  const next = hostile(seed);
  let refused = 0;
  for (let turn = 0; turn < CALLS; turn++) {
    try {
      await next();
    } catch (error) {
      refused++;
      assert.ok(error instanceof Error, `call ${turn} of seed ${seed} threw ${String(error)}`);
      assert.doesNotMatch(error.message, NO_MESSAGE, `call ${turn} of seed ${seed}: ${error.stack}`);
    }
    if (turn % 100 === 0) await new Promise(setImmediate);
  }
  assert.ok(refused > CALLS / 4 && refused < CALLS, `${refused} of ${CALLS} were refused`);
});

test("what getters, proxies and functions of the caller throw arrives", () => {
  const options = [{ get capacity() { return thrower(); } }, new Proxy({}, { get: thrower })];
  for (const own of options) {
    for (const build of [() => new Limiter(GCRA, own), () => new Engine({ a: GCRA }, own), () => new RateLimits([{ name: "a", limit: GCRA }], own), () => new EarrrlStore(own)]) {
      assert.throws(build, { name: "RangeError", message: "of the caller" });
    }
  }
  const limits = (rule) => new RateLimits([{ name: "a", limit: GCRA, ...rule }]);
  for (const rule of [{ key: thrower }, { cost: thrower }, { exempt: thrower }, { plans: [{ name: "b", limit: GCRA, applies: thrower }] }]) {
    assert.throws(() => limits(rule).judge("GET", "/", {}, "10.0.0.1", {}), { name: "RangeError", message: "of the caller" });
  }
});
