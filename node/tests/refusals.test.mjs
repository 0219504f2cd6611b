// Wrong values for every function and option: each message names the argument, the value, and what would be right.
import assert from "node:assert/strict";
import test from "node:test";
import { EarrrlStore, Engine, Limiter, RateLimits } from "earrrl";
import { rateLimit as forExpress } from "earrrl/express";
import { rateLimit as forFastify } from "earrrl/fastify";
import { rateLimit as forHono } from "earrrl/hono";
import { rateLimit as forKoa } from "earrrl/koa";

const GCRA = "gcra 5/s burst=9";
// What an error calls these values.
const VALUES = [[undefined, "undefined"], [null, "null"], [true, "true"], [5, "5"], [NaN, "NaN"], [-Infinity, "-Infinity"], [1e300, "1e300"], ["5", '"5"'], ["x".repeat(99), `"${"x".repeat(40)}…"`],
  [7n, "a BigInt"], [Symbol("a"), "a symbol"], [() => 1, "a function"], [{}, "an object"], [["a"], "an array"], [new Date(0), "an object"], [new Map(), "an object"]];

const KEYS = "a string, a whole number, a BigInt or a Buffer";
const RULE = 'a rule such as "fixed-window 5/1m"';
const KINDS = {
  [RULE]: (value) => typeof value === "string",
  "a string": (value) => typeof value === "string",
  "a number": (value) => typeof value === "number",
  "a number or a BigInt": (value) => typeof value === "number" || typeof value === "bigint",
  "true or false": (value) => typeof value === "boolean",
  "an object": (value) => typeof value === "object" && value !== null,
  "an array": Array.isArray,
  [KEYS]: (value) => ["string", "bigint"].includes(typeof value) || Number.isSafeInteger(value),
};
const NONE = (value) => value === undefined || value === null;

const limiter = new Limiter(GCRA);
const engine = new Engine({ login: GCRA });
const limits = new RateLimits([{ name: "a", limit: GCRA, settled: true }]);
const rule = (options) => new RateLimits([{ name: "a", limit: GCRA, ...options }]);
const answering = (options) => rule(options).judge("GET", "/", {}, "10.0.0.1", {});
const settlement = limits.judge("GET", "/", {}, "10.0.0.1", {}).enter().settlement;

// The argument, what is right, whether it may be left out, the call, and what else is right.
const CALLS = [
  ["rule", RULE, false, (value) => new Limiter(value)],
  ["options", "an object", undefined, (value) => new Limiter(GCRA, value)],
  ["path", "a string", true, (value) => new Limiter(GCRA, { path: value })],
  ["capacity", "a number", true, (value) => new Limiter(GCRA, { capacity: value })],
  ["action", "a string", true, (value) => new Limiter(GCRA, { action: value })],
  ["maxDelay", "a number", true, (value) => new Limiter(GCRA, { action: "delay", maxDelay: value })],
  ["maxCost", "a number", true, (value) => new Limiter(GCRA, { maxCost: value })],
  ["name", "a string", true, (value) => new Limiter(GCRA, { name: value })],
  ...["check", "peek", "charge"].flatMap((name) => [
    ["key", KEYS, false, (value) => limiter[name](value)],
    ["cost", "a number", true, (value) => limiter[name]("a", value)],
    ["key", KEYS, false, (value) => engine[name]({ login: [value, 1] })],
    ["cost", "a number", true, (value) => engine[name]({ login: ["a", value] })],
  ]),
  ["key", KEYS, false, (value) => limiter.checkAt(value, 5)],
  ...["checkAt", "peekAt", "chargeAt", "refundAt"].map((name) => ["at", "a number or a BigInt", false, (value) => limiter[name]("a", value)]),
  ["cost", "a number", true, (value) => limiter.checkAt("a", 5, value)],
  ["key", KEYS, false, (value) => limiter.refund(value)],
  ["cost", "a number", true, (value) => limiter.refund("a", value)],
  ["at", "a number or a BigInt", true, (value) => limiter.refund("a", 1, value)],
  ["key", KEYS, false, (value) => limiter.reset(value)],
  ["login", RULE, false, (value) => new Engine({ login: value })],
  ["path", "a string", true, (value) => new Engine({ login: GCRA }, { path: value })],
  ["capacity", "a number", true, (value) => new Engine({ login: GCRA }, { capacity: value })],
  ["at", "a number or a BigInt", true, (value) => engine.refund({ login: "a" }, value)],
  ["rule", "a string", false, (value) => engine.reset(value, "a")],
  ["key", KEYS, false, (value) => engine.reset("login", value)],
  ["options", "an object", undefined, (value) => new RateLimits([], value)],
  ...["path", "source"].map((name) => [name, "a string", true, (value) => new RateLimits([], { [name]: value })]),
  ...["capacity", "hops", "ipv4Prefix", "ipv6Prefix", "status"].map((name) => [name, "a number", true, (value) => new RateLimits([], { [name]: value })]),
  ...["headersOnAllowed", "xRateLimit", "alwaysVerdict"].map((name) => [name, "true or false", true, (value) => new RateLimits([], { [name]: value })]),
  ["trustedProxies", "an array", true, (value) => new RateLimits([], { trustedProxies: value })],
  ["trustedProxies", "a string", false, (value) => new RateLimits([], { trustedProxies: [value] })],
  ["name", "a string", false, (value) => rule({ name: value })],
  ["limit", RULE, false, (value) => rule({ limit: value })],
  ["action", "a string", true, (value) => rule({ action: value })],
  ["maxDelay", "a number", true, (value) => rule({ action: "delay", maxDelay: value })],
  ["maxCost", "a number", true, (value) => rule({ maxCost: value })],
  ["settled", "true or false", true, (value) => rule({ settled: value })],
  ["name", "a string", false, (value) => rule({ plans: [{ name: value, limit: GCRA, applies: () => true }] })],
  ["limit", RULE, false, (value) => rule({ plans: [{ name: "b", limit: value, applies: () => true }] })],
  ["cost", "a number", true, (value) => answering({ cost: () => value }), [true]],
  ["costAfter", "a number", false, (value) => answering({ costAfter: () => value }).leave(200, {}), [true]],
  ["cost", "a number", false, (value) => settlement.charge(value)],
  ["method", "a string", false, (value) => limits.judge(value, "/", {}, "10.0.0.1", {})],
  ["target", "a string", false, (value) => limits.judge("GET", value, {}, "10.0.0.1", {})],
  ["peer", "a string", true, (value) => limits.judge("GET", "/", {}, value, {})],
  ["name", "a string", false, (value) => limits.change(value, GCRA)],
  ["limit", RULE, false, (value) => limits.change("a", value)],
  ["name", "a string", false, (value) => limits.reset(value, "a")],
  ["key", KEYS, false, (value) => limits.reset("a", value)],
  ["name", "a string", false, (value) => limits.refund(value, "a")],
  ["key", KEYS, false, (value) => limits.refund("a", value)],
  ["cost", "a number", true, (value) => limits.refund("a", "a", value)],
  ["options", "an object", undefined, (value) => new EarrrlStore(value)],
  ["path", "a string", true, (value) => new EarrrlStore({ path: value })],
  ["capacity", "a number", true, (value) => new EarrrlStore({ capacity: value })],
  ["prefix", "a string", true, (value) => new EarrrlStore({ prefix: value })],
  ["windowMs", "a number", false, (value) => new EarrrlStore().init({ windowMs: value })],
];

test("the message for a wrong type names the argument, the value, and what would be right", () => {
  for (const [name, kind, optional, call, right = []] of CALLS) {
    for (const [value, shown] of VALUES) {
      if (KINDS[kind](value) || right.includes(value) || (optional && NONE(value)) || (optional === undefined && value === undefined)) continue;
      const message = `${name}: ${shown} is not ${kind}`;
      assert.throws(() => call(value), (error) => error instanceof Error && error.message === message, `${call}: expected ${message}`);
    }
  }
});

const missing = 'missing: "ban" is not share, skip, or a status from 400 to 999';
const TEXTS = [
  [() => limiter.check("a", -1), "cost: `-1` is not a number from 0 to 1e18"],
  [() => new Limiter(GCRA, { capacity: Infinity }), "capacity: Infinity is not a whole number from 1 to 4294967295"],
  [() => new Limiter(GCRA, { capcity: 5 }), '"capcity" is not an option; expected path, capacity, action, maxDelay, maxCost, name, clock; did you mean capacity?'],
  [() => new Engine({ a: GCRA }, { name: "a" }), '"name" is not an option; expected path, capacity, clock'],
  [() => new EarrrlStore({ paht: "/dev/shm/a" }), '"paht" is not an option; expected path, capacity, prefix, clock; did you mean path?'],
  [() => new RateLimits([], { trustProxies: true }), /^"trustProxies" is not an option; expected source, .*, trustedProxies, /],
  [() => new Limiter("concurrent 3 timeout=5s"), /counts live reservations/],
  [() => new RateLimits([], { trustedProxies: ["::/0"] }), "trustedProxies: ::/0 is everybody; name the proxies' networks, or set hops"],
  [() => new RateLimits([], { trustedProxies: ["10.0.0.0/8"], hops: 1 }), "hops: trustedProxies is set already; want one of them"],
  [() => new RateLimits([], { source: "x-real-ip" }), "source: x-real-ip is read only behind proxies; set trustedProxies or hops"],
  [() => rule({ keys: ["client"] }), /^"keys" is not an option; expected name, limit, key, /],
  [() => new RateLimits([{ name: "a", limt: GCRA }]), /^"limt" is not an option; expected name, .*; did you mean limit\?$/],
  [() => new RateLimits([{ windowMs: 60_000, limit: 5 }]), /^"windowMs" is not an option; expected name, limit, /],
  [() => rule({ limit: 5 }), 'limit: 5 is not a rule such as "fixed-window 5/1m"'],
  [() => rule({ missing: "ban" }), missing],
  [() => rule({ missing: 200 }), "missing: 200 is not a whole number from 400 to 999"],
  [() => rule({ missing: true }), 'missing: true is not "share", "skip", or a status from 400 to 999'],
  [() => rule({ key: 5 }), "key: expected strings and functions"],
  [() => rule({ key: [] }), "key: an empty list; expected at least one part"],
  [() => rule({ key: "adress" }), 'key: "adress" is not client, everyone, method, path, route, header:NAME, cookie:NAME or \'literal\''],
  [() => rule({ exempt: true }), "exempt: expected a function"],
  [() => rule({ costAfter: 5 }), "costAfter: expected a function"],
  [() => rule({ plans: { name: "b" } }), "plans: expected an array of objects with name, limit and applies"],
  [() => rule({ plans: ["b"] }), "plans: expected an array of objects with name, limit and applies"],
  [() => rule({ plans: [{ name: "b", limit: GCRA }] }), "plan b: expected a function"],
  [() => new RateLimits({ name: "a", limit: GCRA }), "rules: expected an array of objects, one for each rule"],
  [() => new RateLimits([GCRA]), "rules: expected an array of objects, one for each rule"],
  [() => new RateLimits([], { status: 200 }), "status: 200 is not a whole number from 400 to 999"],
  [() => new RateLimits([], { trustedProxies: ["10.0.0.0/99"] }), 'trustedProxies: "10.0.0.0/99" is not a network such as 10.0.0.0/8'],
  [() => limits.judge("GET", "/", null), "headers: expected an object with the values of headers by their names"],
  [() => limits.change("b", GCRA), 'neither a rule nor a plan is called "b"'],
  [() => new Engine(GCRA), "rules: expected an object with the texts of rules by their names"],
  [() => engine.check("alice"), "charges: expected an object with keys by the names of rules"],
  [() => engine.check({ login: ["a"] }), "login: expected a key, or a key and a cost"],
  [() => engine.check({ address: "a" }), 'no rule is called "address"'],
  [() => engine.reset("address", "a"), 'no rule is called "address"'],
  [() => new EarrrlStore().init({ windowMs: -1 }), /^windowMs: -1 is not a whole number from 1 to /],
  [() => new EarrrlStore().init({ windowMs: 1000.5 }), /^windowMs: 1000.5 is not a whole number from 1 to /],
  ...[forExpress, forFastify, forHono, forKoa].flatMap((rateLimit) => [
    [() => rateLimit(), "limits: expected RateLimits"],
    [() => rateLimit(limiter), "limits: expected RateLimits"],
    [() => rateLimit(limits, { respond: "no" }), "respond: expected a function"],
  ]),
  [() => forHono(limits, { peer: "10.0.0.1" }), "peer: expected a function"],
];

test("the message for a wrong value says what would be right", () => {
  for (const [call, message] of TEXTS) assert.throws(call, { message }, String(call));
});
