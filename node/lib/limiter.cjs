// Limiters: they decide requests under one rule, or under several at once.
"use strict";
const { withClock } = require("./clock.cjs");
const { NativeEngine, NativeLimiter } = require("./native.cjs");

const OUTCOMES = ["allow", "observe", "quarantine", "delay", "shadow-ban", "deny"];
const [CHECK, PEEK, CHARGE] = [0, 1, 2];

// The places of the figures of a decision, in the order of src/figures.rs.
const FIGURES = ["ALLOWED", "OUTCOME", "REMAINING", "RETRY_AFTER", "EARLIEST", "RESET_AFTER", "RATE", "LIMIT", "DELAY", "AT", "UNITS", "SECONDS"];
const [ALLOWED, OUTCOME, REMAINING, RETRY_AFTER, EARLIEST, RESET_AFTER, RATE, LIMIT, DELAY, AT, UNITS, SECONDS] = FIGURES.keys();

// The figures of the last decision. Every decision copies them at once. The native module keeps the address of its
// memory, so nothing but the native module may get this array.
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
    this.earliest = figures[EARLIEST];
    this.resetAfter = figures[RESET_AFTER];
    this.rate = Number.isNaN(figures[RATE]) ? null : figures[RATE];
    this.limit = figures[LIMIT];
    this.delay = figures[DELAY];
    this.at = figures[AT];
    this.units = figures[UNITS];
    this.seconds = figures[SECONDS];
  }

  headers() {
    const headers = { "RateLimit-Policy": this.#native.policyHeader };
    if (!Number.isNaN(this.units)) headers.RateLimit = this.#native.limitHeader(this.units, this.seconds);
    // The seconds until a unit is available are those of a denied request's wait.
    if (!this.allowed && !Number.isNaN(this.seconds)) headers["Retry-After"] = String(this.seconds);
    return headers;
  }
}

class Limiter {
  #native;
  #name;
  #check;
  #peek;
  #charge;

  constructor(rule, options = {}) {
    this.#native = new NativeLimiter(rule, withClock(options), figures);
    this.#name = this.#native.name;
    this.#check = this.#native.decider(CHECK);
    this.#peek = this.#native.decider(PEEK);
    this.#charge = this.#native.decider(CHARGE);
  }

  check(key, cost) {
    decide(this.#check, key, cost);
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
    decide(this.#peek, key, cost);
    return new Decision(this.#native, this.#name);
  }

  charge(key, cost) {
    decide(this.#charge, key, cost);
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

// Calls a native function without the cost that most requests have, which saves reading it.
const decide = (native, key, cost) => ((cost ?? undefined) === undefined ? native(key) : native(key, cost));

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
    this.#native = new NativeEngine(this.#names, Object.values(rules), withClock(options), figures);
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

const isObject = (value) => typeof value === "object" && value !== null;

function headersOf(native, rule) {
  return {
    get policyHeader() {
      return native.policyHeader(rule);
    },
    limitHeader: (units, seconds) => native.limitHeader(rule, units, seconds),
  };
}

module.exports = { Decision, Engine, Limiter, figures, headersOf, isObject };
