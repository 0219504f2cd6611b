// Rate limits in process: exact, bounded in memory, and shared by all processes of a host that open one file.
"use strict";
const { NativeLimiter, Windows } = require("./earrrl.node");

const OUTCOMES = ["allow", "observe", "quarantine", "delay", "shadow-ban", "deny"];

// The figures of the last decision, in the order of src/figures.rs. Every decision copies them at once.
const figures = new Float64Array(12);

class Decision {
  #native;

  constructor(native) {
    this.#native = native;
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

  constructor(rule, options = {}) {
    this.#native = new NativeLimiter(rule, options);
  }

  check(key, cost) {
    this.#native.check(key, cost, figures);
    return new Decision(this.#native);
  }

  peek(key, cost) {
    this.#native.peek(key, cost, figures);
    return new Decision(this.#native);
  }

  charge(key, cost) {
    this.#native.charge(key, cost, figures);
    return new Decision(this.#native);
  }

  refund(key, cost, at) {
    this.#native.refund(key, cost, at);
  }

  reset(key) {
    this.#native.reset(key);
  }

  get rule() {
    return this.#native.rule;
  }
}

// A store for express-rate-limit.
class EarrrlStore {
  #options;
  #windows;

  constructor({ path, capacity = 100_000, prefix = "" } = {}) {
    this.#options = { path, capacity };
    this.prefix = prefix;
    // Without a file, the counts are those of this process.
    this.localKeys = path === undefined;
  }

  init({ windowMs }) {
    this.windowMs = windowMs;
    this.resetAll();
  }

  async get(key) {
    const count = counted(this.#windows.get(this.prefix + key));
    return count.totalHits > 0 ? count : undefined;
  }

  async increment(key) {
    return counted(this.#windows.increment(this.prefix + key));
  }

  async decrement(key) {
    this.#windows.decrement(this.prefix + key);
  }

  async resetKey(key) {
    this.#windows.reset(this.prefix + key);
  }

  // Forgets the counts of this process. Those in files stay.
  resetAll() {
    this.#windows = new Windows(this.windowMs, this.#options.capacity, this.#options.path);
  }
}

function counted({ totalHits, resetMs }) {
  return { totalHits, resetTime: new Date(resetMs) };
}

module.exports = { Decision, EarrrlStore, Limiter };
