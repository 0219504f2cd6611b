// Rate limits in process: exact, bounded in memory, and shared by all processes of a host that open one file.
"use strict";
const { NativeEngine, NativeLimiter, NativeLimits, Windows } = require("./native.cjs");

const OUTCOMES = ["allow", "observe", "quarantine", "delay", "shadow-ban", "deny"];

// The figures of the last decision, in the order of src/figures.rs. Every decision copies them at once.
const figures = new Float64Array(12);

class Decision {
  #native;

  constructor(native, rule) {
    this.#native = native;
    this.rule = rule;
    this.allowed = figures[0] === 1;
    this.outcome = OUTCOMES[figures[1]];
    this.remaining = figures[2];
    this.retryAfter = figures[3];
    this.resetAfter = figures[4];
    this.rate = Number.isNaN(figures[5]) ? null : figures[5];
    this.limit = figures[6];
    this.delay = figures[7];
    this.at = figures[8];
    this.units = figures[9];
    this.seconds = figures[10];
    this.retryAfterSeconds = figures[11];
  }

  headers() {
    const headers = { "RateLimit-Policy": this.#native.policyHeader };
    if (!Number.isNaN(this.units)) headers.RateLimit = this.#native.limitHeader(this.units, this.seconds);
    if (!Number.isNaN(this.retryAfterSeconds)) headers["Retry-After"] = String(this.retryAfterSeconds);
    return headers;
  }
}

class Limiter {
  #native;
  #name;

  constructor(rule, options = {}) {
    this.#native = new NativeLimiter(rule, options);
    this.#name = this.#native.name;
  }

  check(key, cost) {
    this.#native.check(key, cost, figures);
    return new Decision(this.#native, this.#name);
  }

  checkAt(key, at, cost) {
    this.#native.checkAt(key, at, cost, figures);
    return new Decision(this.#native, this.#name);
  }

  peek(key, cost) {
    this.#native.peek(key, cost, figures);
    return new Decision(this.#native, this.#name);
  }

  charge(key, cost) {
    this.#native.charge(key, cost, figures);
    return new Decision(this.#native, this.#name);
  }

  refund(key, cost, at) {
    this.#native.refund(key, cost, at);
  }

  reset(key) {
    this.#native.reset(key);
  }

  top(count) {
    return this.#native.top(count);
  }

  fingerprint(key) {
    return this.#native.fingerprint(key);
  }

  get size() {
    return this.#native.size;
  }

  get rule() {
    return this.#native.rule;
  }
}

// Several rules in one decision: a request is counted under all of them, or under none.
class Engine {
  #native;

  constructor(rules, { path, capacity } = {}) {
    this.#native = new NativeEngine(Object.keys(rules), Object.values(rules), path, capacity);
  }

  check(charges) {
    return this.#decide("check", charges);
  }

  peek(charges) {
    return this.#decide("peek", charges);
  }

  charge(charges) {
    return this.#decide("charge", charges);
  }

  refund(charges, at) {
    this.#native.refund(...columns(charges), at);
  }

  reset(rule, key) {
    this.#native.reset(rule, key);
  }

  top(rule, count) {
    return this.#native.top(rule, count);
  }

  fingerprint(key) {
    return this.#native.fingerprint(key);
  }

  get rules() {
    return Object.fromEntries(pairs(this.#native.rules));
  }

  #decide(mode, charges) {
    const rule = this.#native.decide(mode, ...columns(charges), figures);
    return new Decision(headersOf(this.#native, rule), rule);
  }
}

// Returns the names of rules, the keys and the costs of a request's charges.
function columns(charges) {
  const names = Object.keys(charges);
  const read = names.map((name) => charges[name]);
  const wrong = read.findIndex((charge) => Array.isArray(charge) && charge.length !== 2);
  if (wrong >= 0) throw new TypeError(`${names[wrong]}: expected a key, or a key and a cost`);
  const keys = read.map((charge) => (Array.isArray(charge) ? charge[0] : charge));
  return [names, keys, read.map((charge) => (Array.isArray(charge) ? charge[1] : 1))];
}

// The rules of a service, which the middlewares ask.
class RateLimits {
  #native;
  #rules;
  #asks;

  constructor(rules, options = {}) {
    this.#rules = rules.map((rule) => ({ ...rule, key: rule.key === undefined ? ["client"] : [rule.key].flat() }));
    this.#asks = this.#rules.some(({ key, cost, exempt, plans }) => exempt || plans?.length || [...key, cost].some(isFunction));
    this.#native = new NativeLimits(this.#rules.map(nativeRule), options);
    this.headers = this.#native.headers;
  }

  // Judges a request: `headers` by name, the connection's address, and the argument of the rules' functions.
  judge(method, target, headers, peer, request) {
    const read = this.headers.flatMap((name) => (headers[name] === undefined ? [] : [name, String(headers[name])]));
    const answers = this.#asks ? this.#rules.map((rule) => ask(rule, request)) : undefined;
    const judged = this.#native.judge(method, target, read, peer, answers);
    return judged.status === null ? new Passing(this.#native, judged, this.#rules) : new Refusal(judged);
  }

  change(name, limit) {
    this.#native.change(name, limit);
  }

  reset(name, key) {
    this.#native.reset(name, key);
  }

  refund(name, key, cost) {
    this.#native.refund(name, key, cost);
  }

  top(name, count) {
    return this.#native.top(name, count);
  }

  fingerprint(key) {
    return this.#native.fingerprint(key);
  }
}

// A request that is passed on.
class Passing {
  #native;
  #judged;
  #rules;

  constructor(native, judged, rules) {
    this.#native = native;
    this.#judged = judged;
    this.#rules = rules;
    this.delay = judged.delay;
  }

  // Returns the decision, if there is one, and the handle of a rule that is settled.
  enter() {
    const entered = this.#native.enter(this.#judged, figures);
    const { rule } = entered;
    return { verdict: rule === null ? null : new Decision(headersOf(this.#native, rule), rule), settlement: entered.settlement() };
  }

  // Charges the costs that depend on the response, and returns the headers to add to it.
  leave(status, headers) {
    let costs;
    try {
      costs = this.#rules.map(({ costAfter }) => (costAfter ? answer("costAfter", costAfter, status, headers) : 0));
    } finally {
      if (!costs) this.#judged.leave();
    }
    return pairs(this.#judged.leave(costs));
  }
}

// A request that is not passed on, with its response.
class Refusal {
  constructor(judged) {
    this.status = judged.status;
    this.headers = pairs(judged.headers);
    this.body = judged.body;
  }
}

const isFunction = (value) => typeof value === "function";

function nativeRule({ key, cost, costAfter, exempt, plans = [], ...rule }) {
  const functions = { costAfter, exempt, ...Object.fromEntries(plans.map(({ name, applies }) => [`plan ${name}`, applies ?? null])) };
  for (const [name, value] of Object.entries(functions)) {
    if (value !== undefined && !isFunction(value)) throw new TypeError(`${name}: expected a function`);
  }
  if (key.some((part) => typeof part !== "string" && !isFunction(part))) throw new TypeError("key: expected texts and functions");
  return {
    ...rule,
    key: key.map((part) => (isFunction(part) ? null : part)),
    cost: isFunction(cost) ? undefined : cost,
    hasCostAfter: costAfter !== undefined,
    plans: plans.map(({ name, limit }) => [name, limit]),
  };
}

function ask({ key, cost, exempt, plans = [] }, request) {
  if (exempt && answer("exempt", exempt, request)) return { exempt: true, keys: [] };
  const keys = key.filter(isFunction).map((part) => answer("key", part, request) ?? null);
  const plan = plans.findIndex(({ applies }) => answer("plans", applies, request));
  return { exempt: false, keys, plan: plan < 0 ? undefined : plan, cost: isFunction(cost) ? answer("cost", cost, request) : undefined };
}

// A promise is true, so an asynchronous function would exempt every request.
function answer(name, call, ...input) {
  const value = call(...input);
  if (isFunction(value?.then)) throw new TypeError(`${name}: the function returned a promise; expected a value`);
  return value;
}

function headersOf(native, rule) {
  return {
    get policyHeader() {
      return native.policyHeader(rule);
    },
    limitHeader: (units, seconds) => native.limitHeader(rule, units, seconds),
  };
}

// Returns a list of names and values as a list of pairs.
function pairs(flat) {
  return flat.flatMap((name, place) => (place % 2 ? [] : [[name, flat[place + 1]]]));
}

// A store for express-rate-limit, which calls `init` with its windows.
class EarrrlStore {
  #options;
  #counts;

  constructor({ path, capacity = 100_000, prefix = "" } = {}) {
    this.#options = { path, capacity };
    this.prefix = prefix;
    // The default of express-rate-limit, for a store that is used before it is initialised.
    this.windowMs = 60_000;
    // Without a file, the counts are those of this process.
    this.localKeys = path === undefined;
  }

  init({ windowMs }) {
    this.windowMs = windowMs;
    this.resetAll();
  }

  async get(key) {
    this.#windows.get(this.prefix + key, figures);
    return figures[0] > 0 ? counted() : undefined;
  }

  async increment(key) {
    this.#windows.increment(this.prefix + key, figures);
    return counted();
  }

  async decrement(key) {
    this.#windows.decrement(this.prefix + key);
  }

  async resetKey(key) {
    this.#windows.reset(this.prefix + key);
  }

  // Forgets the counts of this process. Those in files stay.
  resetAll() {
    this.#counts = new Windows(this.windowMs, this.#options.capacity, this.#options.path);
  }

  get #windows() {
    if (!this.#counts) this.resetAll();
    return this.#counts;
  }
}

// Returns the count that was written last.
function counted() {
  return { totalHits: figures[0], resetTime: new Date(figures[1]) };
}

module.exports = { Decision, EarrrlStore, Engine, Limiter, RateLimits };
