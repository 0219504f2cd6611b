// Rate limits in process: exact, bounded in memory, and shared by all processes of a host that open one file.
"use strict";
const { isAsyncFunction, isPromise } = require("node:util").types;
const { NativeEngine, NativeLimiter, NativeLimits, StoreOptions, Windows } = require("./native.cjs");

const OUTCOMES = ["allow", "observe", "quarantine", "delay", "shadow-ban", "deny"];
const [CHECK, PEEK, CHARGE] = [0, 1, 2];

// The places of the figures of a decision, in the order of src/figures.rs.
const FIGURES = ["ALLOWED", "OUTCOME", "REMAINING", "RETRY_AFTER", "RESET_AFTER", "RATE", "LIMIT", "DELAY", "AT", "UNITS", "SECONDS", "RETRY_AFTER_SECONDS"];
const [ALLOWED, OUTCOME, REMAINING, RETRY_AFTER, RESET_AFTER, RATE, LIMIT, DELAY, AT, UNITS, SECONDS, RETRY_AFTER_SECONDS] = FIGURES.keys();
// The places of the figures of a count in a store, in the order of src/windows.rs.
const [HITS, RESET_TIME] = [0, 1];

// The figures of the last decision. Every decision copies them at once. The native module keeps the address of its
// memory, so nothing else may get this array.
const figures = new Float64Array(FIGURES.length);

class Decision {
  #native;

  constructor(native, rule) {
    this.#native = native;
    this.rule = rule;
    this.allowed = figures[ALLOWED] === 1;
    this.outcome = OUTCOMES[figures[OUTCOME]];
    this.remaining = figures[REMAINING];
    this.retryAfter = figures[RETRY_AFTER];
    this.resetAfter = figures[RESET_AFTER];
    this.rate = Number.isNaN(figures[RATE]) ? null : figures[RATE];
    this.limit = figures[LIMIT];
    this.delay = figures[DELAY];
    this.at = figures[AT];
    this.units = figures[UNITS];
    this.seconds = figures[SECONDS];
    this.retryAfterSeconds = figures[RETRY_AFTER_SECONDS];
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
  #decide;

  constructor(rule, options = {}) {
    this.#native = new NativeLimiter(rule, options, figures);
    this.#name = this.#native.name;
    this.#decide = this.#native.decider();
  }

  check(key, cost) {
    this.#decide(key, cost ?? 1, CHECK);
    return new Decision(this.#native, this.#name);
  }

  checkAt(key, at, cost) {
    return this.#decidedAt(CHECK, key, at, cost);
  }

  peekAt(key, at, cost) {
    return this.#decidedAt(PEEK, key, at, cost);
  }

  chargeAt(key, at, cost) {
    return this.#decidedAt(CHARGE, key, at, cost);
  }

  refundAt(key, at, cost, chargedAt) {
    this.#native.refundAt(key, at, cost, chargedAt);
  }

  #decidedAt(mode, key, at, cost) {
    this.#native.decideAt(key, at, cost, mode);
    return new Decision(this.#native, this.#name);
  }

  peek(key, cost) {
    this.#decide(key, cost ?? 1, PEEK);
    return new Decision(this.#native, this.#name);
  }

  charge(key, cost) {
    this.#decide(key, cost ?? 1, CHARGE);
    return new Decision(this.#native, this.#name);
  }

  refund(key, cost, at) {
    this.#native.refund(key, cost, at);
  }

  reset(key) {
    this.#native.reset(key);
  }

  clear() {
    return this.#native.clear();
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
  #decide;
  // The names of the rules by their places, and the places by their names.
  #names;
  #places;

  constructor(rules, options = {}) {
    if (!isObject(rules)) throw new TypeError("rules: expected an object with the texts of rules by their names");
    this.#names = Object.keys(rules);
    this.#places = new Map(this.#names.map((name, place) => [name, place]));
    this.#native = new NativeEngine(this.#names, Object.values(rules), options, figures);
    this.#decide = this.#native.decider();
  }

  check(charges) {
    return this.#decided(CHECK, charges);
  }

  peek(charges) {
    return this.#decided(PEEK, charges);
  }

  charge(charges) {
    return this.#decided(CHARGE, charges);
  }

  refund(charges, at) {
    this.#native.refund(this.#parts(charges), at);
  }

  reset(rule, key) {
    this.#native.reset(rule, key);
  }

  get rules() {
    const { texts } = this.#native;
    return Object.fromEntries(this.#names.map((name, place) => [name, texts[place]]));
  }

  #decided(mode, charges) {
    const rule = this.#names[this.#decide(mode, ...this.#parts(charges))];
    return new Decision(headersOf(this.#native, rule), rule);
  }

  // Returns the place of the rule, the key and the cost of each charge.
  #parts(charges) {
    if (!isObject(charges)) throw new TypeError("charges: expected an object with keys by the names of rules");
    const parts = [];
    for (const name of Object.keys(charges)) {
      const place = this.#places.get(name);
      if (place === undefined) throw new Error(`no rule is called ${JSON.stringify(name)}`);
      const charge = charges[name];
      if (!Array.isArray(charge)) parts.push(place, charge, 1);
      else if (charge.length === 2) parts.push(place, charge[0], charge[1] ?? 1);
      else throw new TypeError(`${name}: expected a key, or a key and a cost`);
    }
    return parts;
  }
}

// Says that the rules are those of a route, whose functions may return promises.
const ROUTE = Symbol("the rules of a route");

// The rules of a service, which the middlewares ask.
class RateLimits {
  #native;
  #rules;
  #asks;
  #readsRoute;
  #options;
  #routes = new Map();

  constructor(rules = [], options = {}, kind) {
    if (!Array.isArray(rules) || !rules.every(isObject)) throw new TypeError("rules: expected an array of objects, one for each rule");
    this.#rules = rules.map((rule) => ({ ...rule, key: [rule.key ?? "client"].flat() }));
    this.#asks = this.#rules.some(({ key, cost, exempt, plans }) => exempt || plans?.length || [...key, cost].some(isFunction));
    this.#options = options;
    this.isAwaited = kind === ROUTE && this.#asks;
    this.#native = new NativeLimits(this.#rules.map((rule) => nativeRule(rule, kind === ROUTE)), options, figures);
    this.headers = this.#native.headers;
    this.#readsRoute = this.#native.readsRoute;
    for (const warning of this.#native.warnings) process.emitWarning(warning);
  }

  // Judges a request: `headers` by name, the connection's address, the argument of the rules' functions, and the route
  // that the framework has found.
  judge(method, target, headers, peer, request, route) {
    return this.#judge(this.#asks ? this.#rules.map((rule) => ask(rule, request)) : [], method, target, headers, peer, route);
  }

  // Judges a request of a route, after its functions have answered. All rules of a route have the same functions.
  async judgeLater(method, target, headers, peer, request, route) {
    const answers = await askLater(this.#rules[0], request);
    return this.#judge(this.#rules.map(() => answers), method, target, headers, peer, route);
  }

  // Returns the rules of a route, one for each text. Two calls with one name and equal options share a limit.
  route(limit, { name = this.#nextName(), ...options } = {}) {
    const known = this.#routes.get(name);
    const settings = { ...options, limit: String(limit) };
    if (known?.settings && haveEqualValues(known.settings, settings)) return known.limits;
    const texts = typeof limit === "string" ? limit.split(";").map((text) => text.trim()) : limit;
    if (texts.length === 0) throw new Error("limit: an empty array; expected at least one limit, such as 5/minute");
    if (options.plans?.length && texts.length > 1) throw new Error("plans: a limit with plans has one text");
    if (options.paths !== undefined) throw new Error("paths: a limit on a route is for all paths of the route");
    const plans = options.plans?.map((plan) => ({ ...plan, name: `${name}-${plan?.name}` }));
    const rules = texts.map((text, place) => ({ ...options, plans, name: place ? `${name}-${place + 1}` : name, limit: text }));
    const names = [...rules, ...(plans ?? [])].map((rule) => rule.name);
    const taken = names.find((one) => this.#routes.has(one) || this.#hasRule(one));
    if (taken !== undefined) throw new Error(`name: ${JSON.stringify(taken)} is there already, with other settings; choose another name`);
    const limits = new RateLimits(rules, this.#options, ROUTE);
    for (const one of names) this.#routes.set(one, { settings: one === name ? settings : undefined, limits });
    return limits;
  }

  #nextName() {
    if (this.#options.path !== undefined) throw new Error('name: a limit on a route that processes share needs a name, such as "login"');
    return `route-${this.#routes.size + 1}`;
  }

  #hasRule(name) {
    return this.#rules.some((rule) => rule.name === name || rule.plans?.some((plan) => plan.name === name));
  }

  #judge(answers, method, target, headers, peer, route) {
    if (!isObject(headers)) throw new TypeError("headers: expected an object with the values of headers by their names");
    const read = this.headers.flatMap((name) => (headers[name] === undefined ? [] : [name, String(headers[name])]));
    const judged = this.#native.judge(method, target, read, peer, answers, this.#readsRoute ? route : undefined);
    return judged.status === null ? new Passing(this.#native, judged, this.#rules) : new Refusal(judged);
  }

  change(name, limit) {
    this.#with(name).change(name, limit);
  }

  reset(name, key) {
    this.#with(name).reset(name, key);
  }

  refund(name, key, cost) {
    this.#with(name).refund(name, key, cost);
  }

  // Returns the limits among which a rule or plan is.
  #with(name) {
    return this.#routes.get(name)?.limits ?? this.#native;
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
    const entered = this.#native.enter(this.#judged);
    const { rule } = entered;
    return { verdict: rule === null ? null : new Decision(headersOf(this.#native, rule), rule), settlement: entered.settlement() };
  }

  // Charges the costs that depend on the response, and returns the headers to add to it.
  leave(status, headers) {
    let costs;
    try {
      costs = this.#rules.map(({ costAfter }) => (costAfter ? costOf(answer("costAfter", costAfter, status, headers)) : 0));
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
const isObject = (value) => typeof value === "object" && value !== null;

function nativeRule({ key, cost, costAfter, exempt, plans, ...rule }, isOfRoute) {
  plans ??= [];
  if (!Array.isArray(plans) || !plans.every(isObject)) throw new TypeError("plans: expected an array of objects with name, limit and applies");
  const functions = [["costAfter", costAfter], ["exempt", exempt], ...plans.map(({ name, applies }) => [`plan ${String(name)}`, applies ?? false])];
  for (const [name, value] of functions) {
    if ((value ?? undefined) !== undefined && !isFunction(value)) throw new TypeError(`${name}: expected a function`);
  }
  for (const [name, value] of [...functions, ["cost", cost], ...key.map((part) => ["key", part])]) {
    if (isAsyncFunction(value) && !(isOfRoute && name !== "costAfter")) throw new TypeError(`${name}: ${nameOf(value)} is asynchronous; expected a function that returns its value at once`);
  }
  if (key.some((part) => typeof part !== "string" && !isFunction(part))) throw new TypeError("key: expected strings and functions");
  return {
    ...rule,
    key: key.map((part) => (isFunction(part) ? null : part)),
    paths: typeof rule.paths === "string" ? [rule.paths] : rule.paths,
    cost: isFunction(cost) ? undefined : cost,
    costAfter: isFunction(costAfter),
    plans: plans.map(({ name, limit }) => ({ name, limit })),
  };
}

function ask({ key, cost, exempt, plans }, request) {
  if (exempt && answer("exempt", exempt, request)) return { exempt: true, keys: [] };
  const keys = key.filter(isFunction).map((part) => answer("key", part, request) ?? null);
  const plan = (plans ?? []).findIndex(({ applies }) => answer("plans", applies, request));
  return { exempt: false, keys, plan: plan < 0 ? undefined : plan, cost: isFunction(cost) ? costOf(answer("cost", cost, request)) : undefined };
}

// Asks the functions of a route's rule, which may return promises.
async function askLater({ key, cost, exempt, plans }, request) {
  if (exempt && (await exempt(request))) return { exempt: true, keys: [] };
  const keys = [];
  for (const part of key.filter(isFunction)) keys.push(keyOf(part, await part(request)));
  let plan;
  for (const [place, { applies }] of (plans ?? []).entries()) {
    if (plan === undefined && (await applies(request))) plan = place;
  }
  return { exempt: false, keys, plan, cost: isFunction(cost) ? costOf(await cost(request)) : undefined };
}

// Returns a key, or null for none. Values of other types are an error that names the function.
function keyOf(call, key) {
  if (key === undefined || key === null) return null;
  if (["string", "number", "bigint"].includes(typeof key) || Buffer.isBuffer(key)) return key;
  throw new TypeError(`key: ${nameOf(call)} returned ${Array.isArray(key) ? "an array" : typeof key}; expected a string, number, bigint or Buffer`);
}

function haveEqualValues(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}

// A promise is true, so a function that returns one would exempt every request.
function answer(name, call, ...input) {
  const value = call(...input);
  if (isPromise(value) || isFunction(value?.then)) {
    // What rejects the promise is not reported beside the error.
    if (isPromise(value)) value.catch(() => {});
    throw new TypeError(`${name}: ${nameOf(call)} returned a promise; expected a value, since functions of rules are not awaited`);
  }
  return value;
}

// A function may say only whether a request or response costs something.
const costOf = (value) => (typeof value === "boolean" ? Number(value) : value);

const nameOf = ({ name }) => (typeof name === "string" && name) || "the function";

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
  #increment;

  constructor(options = {}) {
    this.#options = new StoreOptions(options);
    this.prefix = this.#options.prefix;
    // The default of express-rate-limit, for a store that is used before it is initialised.
    this.windowMs = 60_000;
    // Without a file, the counts are those of this process.
    this.localKeys = !this.#options.isShared;
  }

  init({ windowMs }) {
    this.windowMs = windowMs;
    this.#open();
  }

  async get(key) {
    this.#windows.get(this.prefix + key);
    return figures[HITS] > 0 ? counted() : undefined;
  }

  async increment(key) {
    if (!this.#increment) this.#open();
    this.#increment(this.prefix + key);
    return counted();
  }

  async decrement(key) {
    this.#windows.decrement(this.prefix + key);
  }

  async resetKey(key) {
    this.#windows.reset(this.prefix + key);
  }

  // Forgets the counts of all keys, those of other processes and prefixes in the same file among them.
  resetAll() {
    this.#windows.clear();
  }

  get #windows() {
    if (!this.#counts) this.#open();
    return this.#counts;
  }

  #open() {
    this.#counts = new Windows(this.windowMs, this.#options, figures);
    this.#increment = this.#counts.incrementer();
  }
}

// Returns the count that was written last.
function counted() {
  return { totalHits: figures[HITS], resetTime: new Date(figures[RESET_TIME]) };
}

module.exports = { Decision, EarrrlStore, Engine, Limiter, RateLimits };
