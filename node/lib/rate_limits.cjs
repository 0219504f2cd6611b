// The rules of a service, which the middlewares ask, and the limits of its routes.
"use strict";
const { isAsyncFunction, isPromise } = require("node:util").types;
const { withClock } = require("./clock.cjs");
const { Decision, figures, headersOf, isObject } = require("./limiter.cjs");
const { NativeLimits } = require("./native.cjs");

// The greatest number of limits on routes, each of which has memory of its own. An application that makes a limit in each
// request would have a new one each time, which limits nothing.
const MOST_ROUTES = 1000;

// Says that the rules are those of a route, whose functions may return promises.
const ROUTE = Symbol("the rules of a route");

// The rules of a service, which the middlewares ask.
class RateLimits {
  #native;
  #decide;
  #rules;
  #asks;
  #options;
  #routes = new Map();

  constructor(rules = [], options = {}, kind) {
    if (!Array.isArray(rules) || !rules.every(isObject)) throw new TypeError("rules: expected an array of objects, one for each rule");
    this.#rules = rules.map((rule) => ({ ...rule, key: [rule.key ?? "client"].flat() }));
    this.#asks = this.#rules.some(({ key, cost, exempt, plans, limitBy }) => exempt || plans?.length || [...key, cost, limitBy].some(isFunction));
    this.#options = options;
    this.isAwaited = kind === ROUTE && this.#asks;
    this.#native = new NativeLimits(this.#rules.map((rule) => nativeRule(rule, kind === ROUTE)), withClock(options), figures);
    this.#decide = this.#native.judge();
    this.headers = this.#native.headers;
    this.readsTarget = this.#native.readsTarget;
    this.readsRoute = this.#native.readsRoute;
    for (const warning of this.#native.warnings) process.emitWarning(warning);
  }

  // Judges a request: `headers` by name, the connection's address, the argument of the rules' functions, and the route
  // that the framework has found.
  judge(method, target, headers, peer, request, route) {
    return this.#judge(this.#asks ? this.#rules.map((rule) => ask(rule, request)) : undefined, method, target, headers, peer, route);
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
    if (!Array.isArray(texts)) throw new TypeError(`limit: ${kindOf(limit)} is no limit; expected a text such as 5/minute`);
    if (texts.length === 0) throw new Error("limit: an empty array; expected at least one limit, such as 5/minute");
    const only = options.plans?.length ? "plans" : options.limitBy && "limitBy";
    if (only && texts.length > 1) throw new Error(`${only}: a limit with ${only} has one text`);
    if (options.paths !== undefined) throw new Error("paths: a limit on a route is for all paths of the route");
    const plans = options.plans?.map((plan) => ({ ...plan, name: `${name}-${plan?.name}` }));
    const rules = texts.map((text, place) => ({ ...options, plans, name: place ? `${name}-${place + 1}` : name, limit: text }));
    const names = [...rules, ...(plans ?? [])].map((rule) => rule.name);
    const taken = names.find((one) => this.#routes.has(one) || this.#hasRule(one));
    if (taken !== undefined) throw new Error(`name: ${JSON.stringify(taken)} is there already, with other settings; choose another name`);
    if (this.#routes.size >= MOST_ROUTES) throw new Error(`limit: ${MOST_ROUTES} limits on routes are in use, which is the most; make a limit once, not in each request`);
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
    if (this.#rules.length === 0) return new PlainPassing("");
    let read;
    for (const name of this.headers) if (headers[name] !== undefined) (read ??= []).push(name, String(headers[name]));
    const judged = this.#decide(method, target, read, peer, answers, this.readsRoute ? route : undefined);
    if (typeof judged !== "string") return new Passing(this.#native, judged, this.#rules);
    return figures[STATUS] === 0 ? new PlainPassing(judged) : new Refusal(figures[STATUS], judged);
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

// The places of the status of a denial, 0 for none, and of the delay, among the figures of a request.
const [STATUS, DELAY] = [0, 1];

// The headers of a response, in the order in which the native module has their values.
const HEADERS = ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

// A request that is passed on, to whose response headers are added, and nothing else.
class PlainPassing {
  #values;
  delay = 0;
  readsResponse = false;

  // `values` has those of the headers, as lines.
  constructor(values) {
    this.#values = values;
    this.addsNothing = values === "";
  }

  enter() {
    return { verdict: null, settlement: null };
  }

  leave() {
    const added = [];
    if (this.addsNothing) return added;
    // `split` takes twice as long.
    let start = 0;
    for (let end; (end = this.#values.indexOf("\n", start)) >= 0; start = end + 1) added.push([HEADERS[added.length], this.#values.slice(start, end)]);
    added.push([HEADERS[added.length], this.#values.slice(start)]);
    return added;
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
    this.delay = figures[DELAY];
    // True if a cost depends on the response.
    this.readsResponse = rules.some(({ costAfter }) => costAfter);
  }

  // Returns the decision, if there is one, and the handle of a rule that is settled.
  enter() {
    const entered = this.#native.enter(this.#judged);
    const { rule } = entered;
    return { verdict: rule === null ? null : new Decision(headersOf(entered, rule), rule), settlement: entered.settlement() };
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
  // `text` has a line for each name and value, an empty line, and the body.
  constructor(status, text) {
    const end = text.indexOf("\n\n");
    this.status = status;
    this.headers = pairs(text.slice(0, end).split("\n"));
    this.body = text.slice(end + 2);
  }
}

const isFunction = (value) => typeof value === "function";

function nativeRule({ key, cost, costAfter, exempt, plans, limitBy, ...rule }, isOfRoute) {
  plans ??= [];
  if (!Array.isArray(plans) || !plans.every(isObject)) throw new TypeError("plans: expected an array of objects with name, limit and applies");
  const functions = [["costAfter", costAfter], ["exempt", exempt], ["limitBy", limitBy], ...plans.map(({ name, applies }) => [`plan ${String(name)}`, applies ?? false])];
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
    limitBy: isFunction(limitBy),
    plans: plans.map(({ name, limit }) => ({ name, limit })),
  };
}

function ask({ key, cost, exempt, plans, limitBy }, request) {
  if (exempt && answer("exempt", exempt, request)) return { exempt: true, keys: [] };
  const keys = key.filter(isFunction).map((part) => keyOf(part, answer("key", part, request)));
  const plan = (plans ?? []).findIndex(({ applies }) => answer("plans", applies, request));
  const limit = limitBy && plan < 0 ? limitOf(limitBy, answer("limitBy", limitBy, request)) : undefined;
  return { exempt: false, keys, plan: plan < 0 ? undefined : plan, limitBy: limit, cost: isFunction(cost) ? costOf(answer("cost", cost, request)) : undefined };
}

// Asks the functions of a route's rule, which may return promises.
async function askLater({ key, cost, exempt, plans, limitBy }, request) {
  if (exempt && (await exempt(request))) return { exempt: true, keys: [] };
  const keys = [];
  for (const part of key.filter(isFunction)) keys.push(keyOf(part, await part(request)));
  let plan;
  for (const [place, { applies }] of (plans ?? []).entries()) {
    if (plan === undefined && (await applies(request))) plan = place;
  }
  const limit = limitBy && plan === undefined ? limitOf(limitBy, await limitBy(request)) : undefined;
  return { exempt: false, keys, plan, limitBy: limit, cost: isFunction(cost) ? costOf(await cost(request)) : undefined };
}

// Returns a key, or null for none. Values of other types are an error that names the function.
function keyOf(call, key) {
  if (key === undefined || key === null) return null;
  if (typeof key === "string" || typeof key === "bigint" || Number.isSafeInteger(key) || Buffer.isBuffer(key)) return key;
  throw new TypeError(`key: ${nameOf(call)} returned ${kindOf(key)}; expected a string, a whole number, a bigint or a Buffer`);
}

// Returns the text of a limit, or undefined for that of the rule.
function limitOf(call, limit) {
  if (typeof limit === "string" || limit === undefined || limit === null) return limit ?? undefined;
  throw new TypeError(`limitBy: ${nameOf(call)} returned ${kindOf(limit)}; expected the text of a limit, or nothing`);
}

// Returns what errors call a value.
function kindOf(value) {
  if (typeof value === "object") return value === null ? "null" : Array.isArray(value) ? "an array" : "an object";
  return ["function", "symbol"].includes(typeof value) ? `a ${typeof value}` : String(value);
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

// Returns a list of names and values as a list of pairs.
function pairs(flat) {
  const found = [];
  for (let place = 0; place < flat.length; place += 2) found.push([flat[place], flat[place + 1]]);
  return found;
}

module.exports = { RateLimits, kindOf };
