// Stores for the limiters of other packages, which compare the counts with limits themselves: the counts go on under a
// quota that nobody reaches. A window begins with a key's first request.
"use strict";
const { join } = require("node:path");
const { withClock } = require("./clock.cjs");
const { Limiter } = require("./limiter.cjs");
const { StoreOptions, Windows } = require("./native.cjs");
const { kindOf } = require("./rate_limits.cjs");

// The places of the figures of a count, in the order of src/windows.rs.
const [HITS, RESET_TIME, LEFT] = [0, 1, 2];
// The last count. The native module keeps the address of its memory.
const figures = new Float64Array(3);
// The greatest number of lengths of windows in one store, since each has its own memory.
const MOST_LENGTHS = 64;

// A store for express-rate-limit, which calls `init` with its windows.
class EarrrlStore {
  #options;
  #counts;
  #increment;

  constructor(options = {}) {
    this.#options = new StoreOptions(withClock(options));
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
    this.#windows.get(this.#client(key));
    return figures[HITS] > 0 ? counted() : undefined;
  }

  async increment(key) {
    if (!this.#increment) this.#open();
    this.#increment(this.#client(key));
    return counted();
  }

  async decrement(key) {
    this.#windows.decrement(this.#client(key));
  }

  async resetKey(key) {
    this.#windows.reset(this.#client(key));
  }

  // Forgets the counts of all keys, those of other processes and prefixes in the same file among them.
  resetAll() {
    this.#windows.clear();
  }

  #client(key) {
    return this.prefix + textOf(key, "keyGenerator");
  }

  get #windows() {
    if (!this.#counts) this.#open();
    return this.#counts;
  }

  #open() {
    this.#counts = new Windows("windowMs", this.windowMs, this.#options, figures);
    this.#increment = this.#counts.incrementer();
  }
}

// Returns a class of stores for @fastify/rate-limit, which makes one for the application, and for each route a child of it.
// All of them share the counters, in which a route's counts have its name.
function fastifyStore(options = {}) {
  const counters = new Counters("timeWindow", options);
  let handlers = 0;

  // Handlers of `fastify.rateLimit()` have no route. They are numbered in the order in which the application makes them.
  const nameOf = ({ method, url }) => (url === undefined ? `handler ${++handlers}` : routeOf(method, url));

  return class EarrrlFastifyStore {
    #prefix;

    constructor(settings = {}, route = "") {
      for (const name of ["continueExceeding", "exponentialBackoff"]) {
        if (settings[name]) throw new Error(`${name}: true is not possible with this store, whose windows end when their length has passed; expected false`);
      }
      this.#prefix = `${counters.prefix}${route}\n`;
    }

    incr(key, callback, timeWindow) {
      answer(callback, () => counters.increment(this.#client(key), timeWindow));
    }

    read(key, callback, timeWindow) {
      answer(callback, () => counters.get(this.#client(key), timeWindow));
    }

    child(settings) {
      return new EarrrlFastifyStore(settings, nameOf(settings.routeInfo ?? {}));
    }

    #client(key) {
      return this.#prefix + textOf(key, "keyGenerator");
    }
  };
}

// Calls a callback with a count or an error, and never again if it throws.
function answer(callback, count) {
  let current, ttl;
  try {
    ({ hits: current, left: ttl } = count());
  } catch (error) {
    return callback(error);
  }
  callback(null, { current, ttl });
}

// Returns the name of a route of Fastify. Its HEAD has the limit of its GET, for which Fastify makes a route of its own,
// also if the route of the GET has more methods.
function routeOf(method, url) {
  const verbs = [method].flat().map((verb) => (verb === "HEAD" ? "GET" : verb));
  return `${verbs.includes("GET") ? "GET" : verbs.join("-")} ${url}`;
}

// A storage for @nestjs/throttler.
class EarrrlThrottlerStorage {
  #counters;
  #options;
  #blocks = new Map();

  constructor(options = {}) {
    this.#counters = new Counters("ttl", options);
    this.#options = options;
  }

  // Counts a request, and blocks a client that is above its limit. Waits are in seconds here.
  async increment(key, ttl, limit, blockDuration, throttlerName) {
    const client = `${this.#counters.prefix}${throttlerName}\n${textOf(key, "generateKey")}`;
    const block = blockDuration > 0 ? this.#block(blockDuration) : undefined;
    const held = this.#held(client);
    if (held > 0) return blocked(limit + 1, held);
    const { hits, left } = this.#counters.increment(client, ttl);
    if (hits <= limit) return { totalHits: hits, timeToExpire: seconds(left), isBlocked: false, timeToBlockExpire: 0 };
    if (!block) return blocked(hits, left);
    block.check(client);
    // After the block, the client begins afresh.
    this.#counters.reset(client, ttl);
    return blocked(hits, blockDuration);
  }

  // Returns the milliseconds for which a client is still blocked. Its requests may have other lengths than the one that blocked it.
  #held(client) {
    let held = 0;
    for (const block of this.#blocks.values()) held = Math.max(held, block.peek(client).retryAfter);
    return held;
  }

  // Returns the limiter of the blocks of a length: a client that was let through once is denied until the block ends.
  #block(length) {
    return lengthOf(this.#blocks, "blockDuration", length, () => {
      const { path, capacity, clock } = this.#options;
      return new Limiter(`gcra 1/${length}ms burst=1`, { capacity, clock, path: path && join(path, `block-${length}ms`) });
    });
  }
}

const blocked = (totalHits, left) => ({ totalHits, timeToExpire: seconds(left), isBlocked: true, timeToBlockExpire: seconds(left) });
const seconds = (millis) => Math.ceil(millis / 1000);

// Counters of windows of several lengths.
class Counters {
  #name;
  #options;
  #known = new Map();

  // `name` is the setting of the other package that has the length of a window.
  constructor(name, options) {
    this.#name = name;
    this.#options = new StoreOptions(withClock(options));
    this.prefix = this.#options.prefix;
  }

  // Counts a request. Returns the count, and the milliseconds that are left of the window. One of length 0 ends at once.
  increment(client, length) {
    if (length === 0) return { hits: 1, left: 0 };
    this.#of(length).increment(client);
    return { hits: figures[HITS], left: Math.ceil(figures[LEFT]) };
  }

  get(client, length) {
    if (length === 0) return { hits: 0, left: 0 };
    this.#of(length).windows.get(client);
    return { hits: figures[HITS], left: figures[HITS] > 0 ? Math.ceil(figures[LEFT]) : 0 };
  }

  reset(client, length) {
    if (length !== 0) this.#of(length).windows.reset(client);
  }

  #of(length) {
    return lengthOf(this.#known, this.#name, length, () => {
      const windows = new Windows(this.#name, length, this.#options, figures);
      return { windows, increment: windows.incrementer() };
    });
  }
}

// Returns what is known for a length, or makes it.
function lengthOf(known, name, length, make) {
  const found = known.get(length);
  if (found) return found;
  if (known.size >= MOST_LENGTHS) throw new Error(`${name}: ${length} is one length too many; expected at most ${MOST_LENGTHS} different ones`);
  const made = make();
  known.set(length, made);
  return made;
}

// Returns a key as a text. A value of another type is an error: all objects would be one client.
function textOf(key, generator) {
  if (typeof key === "string") return key;
  if (typeof key === "bigint" || Number.isSafeInteger(key)) return String(key);
  throw new TypeError(`key: ${generator} returned ${kindOf(key)}; expected a string, a whole number or a bigint`);
}

// Returns the count that was written last, as express-rate-limit wants it.
function counted() {
  return { totalHits: figures[HITS], resetTime: new Date(figures[RESET_TIME]) };
}

module.exports = { EarrrlStore, EarrrlThrottlerStorage, fastifyStore, routeOf };
