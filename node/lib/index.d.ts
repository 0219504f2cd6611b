/// <reference types="node" />

/** A whole number counts as its decimal text; one above 2^53 is a bigint or a string. */
export type Key = string | number | bigint | Buffer;
export type Outcome = "allow" | "observe" | "quarantine" | "delay" | "shadow-ban" | "deny";

/** The answer to a request. Waits are in milliseconds. */
export declare class Decision {
  private constructor();
  /** True if the request is answered as allowed: every outcome except "deny". */
  readonly allowed: boolean;
  readonly outcome: Outcome;
  /** The name of the rule that determined the figures. */
  readonly rule: string;
  /** The number of requests of cost 1 that would be allowed now, one after the other. */
  readonly remaining: number;
  /** The wait from which on the same request is allowed: 0 if it is allowed, Infinity for never. */
  readonly retryAfter: number;
  /**
   * The wait after which the same request would be allowed if the client sent nothing else. Under a strict average,
   * `retryAfter` of a denied request may be later: a time that no other one is told.
   */
  readonly earliest: number;
  /** The wait after which the client's past requests no longer affect decisions. */
  readonly resetAfter: number;
  /** The client's measured rate in cost units per second, or null if the algorithm measures none. */
  readonly rate: number | null;
  /** The rate that the rule allows. */
  readonly limit: number;
  /** The wait for which the request must be held back, for the action "delay". */
  readonly delay: number;
  /** The instant of the decision in nanoseconds since the epoch, for `refund`; a double is 128 ns off at most. */
  readonly at: number;
  /** The headers RateLimit, RateLimit-Policy and, for a denied request, Retry-After. */
  headers(): Record<string, string>;
}

export interface LimiterOptions {
  /** The file that processes share. Without it, the limiter counts for this process. */
  path?: string;
  /** The greatest number of clients, 100000 by default. */
  capacity?: number;
  action?: "deny" | "shadow-ban" | "quarantine" | "delay" | "observe";
  /** The longest delay in milliseconds, for the action "delay". */
  maxDelay?: number;
  maxCost?: number;
  /** The name that headers show, "default" by default. */
  name?: string;
  clock?: Clock;
}

/** A clock for tests, in place of the system's: one that they move, or what `Date.now` returns at each use. */
export type Clock = ManualClock | "Date.now";

/** A clock that moves only when it is moved. */
export declare class ManualClock {
  /** Begins at `start`, in milliseconds since the epoch, by default at the beginning of the day (UTC). */
  constructor(start?: number);
  advance(milliseconds: number): void;
  /** Returns the clock's time in milliseconds since the epoch. */
  now(): number;
}

/** Decides requests under one rule. */
export declare class Limiter {
  constructor(rule: string, options?: LimiterOptions);
  /** Decides a request and counts it, as the rule's policy demands. */
  check(key: Key, cost?: number): Decision;
  /**
   * Decides a request as of the instant `at`, in nanoseconds since the epoch, or as of the latest instant that was used if
   * that is later: for replays of logs.
   */
  checkAt(key: Key, at: number | bigint, cost?: number): Decision;
  /** Decides a request as of an instant and counts nothing. */
  peekAt(key: Key, at: number | bigint, cost?: number): Decision;
  /** Counts a request as of an instant, even if it is over the limit. */
  chargeAt(key: Key, at: number | bigint, cost?: number): Decision;
  /** Takes back, as of the instant `at`, the request of the decision with `chargedAt`, by default the latest one. */
  refundAt(key: Key, at: number | bigint, cost?: number, chargedAt?: number | bigint): void;
  /** Decides a request and counts nothing. */
  peek(key: Key, cost?: number): Decision;
  /** Counts a request even if it is over the limit. */
  charge(key: Key, cost?: number): Decision;
  /** Takes back the request of the decision with this `at`, by default the latest one. */
  refund(key: Key, cost?: number, at?: number | bigint): void;
  /** Forgets a client. */
  reset(key: Key): void;
  /** Forgets all clients, those of other processes that use the file among them. Returns their number. */
  clear(): number;
  /** The number of stored clients, including idle ones. Of a large table it is an estimate from a sample, which may miss few clients: 0 does not mean that there are none. */
  readonly size: number;
  readonly rule: string;
}

/** The keys of a request by the names of rules, each alone or with a cost. */
export type Charges = Record<string, Key | [key: Key, cost: number]>;

/** Decides requests under several named rules: a request is counted under all of them, or under none. */
export declare class Engine {
  /** Takes the texts of the rules by their names. `path` is the directory of the files that processes share. */
  constructor(rules: Record<string, string>, options?: Pick<LimiterOptions, "path" | "capacity" | "clock">);
  /** Decides a request and counts it: `check({ login: "alice", address: ["192.0.2.7", 5] })`. */
  check(charges: Charges): Decision;
  /** Decides a request and counts nothing. */
  peek(charges: Charges): Decision;
  /** Counts a request under every rule, even if it is over a limit. */
  charge(charges: Charges): Decision;
  /** Takes back the request of the decision with this `at`, by default the latest one. */
  refund(charges: Charges, at?: number | bigint): void;
  /** Forgets a client of a rule. */
  reset(rule: string, key: Key): void;
  /** The texts of the rules by their names. */
  readonly rules: Record<string, string>;
}

/** A rule for requests. Functions get the request of the framework, and must not return promises. */
export interface Rule<Request = any> {
  name: string;
  limit: string;
  /** "client" (the default), "everyone", "method", "path", "route", "header:NAME", "cookie:NAME", "client/24", alternatives as "header:x-user | client", a function, or a list of these. */
  key?: KeyPart<Request> | KeyPart<Request>[];
  /** The paths to which the rule applies, in all their spellings: "/login", or with all below it, "/api/*". By default all. */
  paths?: string | string[];
  /** Requests without a key: "share" one limit (the default), "skip" the rule, or a status to deny them with. */
  missing?: "share" | "skip" | number;
  cost?: number | ((request: Request) => number | boolean);
  /** An additional cost, by the response. A client that leaves before the response counts as status 499. */
  costAfter?: (status: number, headers: Record<string, unknown>) => number | boolean;
  /** Gives the handler a handle for later costs. */
  settled?: boolean;
  exempt?: (request: Request) => unknown;
  /** Other limits for some requests: the first that applies is used. */
  plans?: { name: string; limit: string; applies: (request: Request) => unknown }[];
  /** The text of the limit of the request's client; nothing for that of the rule. */
  limitBy?: (request: Request) => string | null | undefined;
  action?: LimiterOptions["action"];
  maxDelay?: number;
  maxCost?: number;
}

/** A function of a limit on a route, which may return a promise. */
export type Later<Request, Value> = (request: Request) => Value | Promise<Value>;

/** The options of a limit on a route. Those of a rule mean what they mean there. */
export interface RouteOptions<Request = any>
  extends Pick<Rule<Request>, "missing" | "costAfter" | "settled" | "action" | "maxDelay" | "maxCost"> {
  /** The limit's name, by which routes share it. Limits in files need one. */
  name?: string;
  key?: RouteKeyPart<Request> | RouteKeyPart<Request>[];
  cost?: number | Later<Request, number | boolean>;
  exempt?: Later<Request, unknown>;
  plans?: { name: string; limit: string; applies: Later<Request, unknown> }[];
  limitBy?: Later<Request, string | null | undefined>;
}

export type RouteKeyPart<Request = any> = string | Later<Request, Key | null | undefined>;

export type KeyPart<Request = any> = string | ((request: Request) => Key | null | undefined);

export interface RateLimitsOptions {
  /** The directory of the files that processes share. Without it, the rules count for this process. */
  path?: string;
  /** The greatest number of clients of each rule, 100000 by default. */
  capacity?: number;
  trustedProxies?: string[];
  hops?: number;
  /** The header of the proxies: "x-forwarded-for" (the default), "forwarded", or one with a single address. */
  source?: string;
  ipv4Prefix?: number;
  ipv6Prefix?: number;
  status?: number;
  headersOnAllowed?: boolean;
  xRateLimit?: boolean;
  alwaysVerdict?: boolean;
  clock?: Clock;
}

/** The values for a request's handler. */
export interface Entered {
  /** The decision on a request over its limit, or on every request with `alwaysVerdict`. */
  verdict: Decision | null;
  /** Charges a cost that is known only later, for a rule that is `settled`. */
  settlement: { charge(cost: number): void } | null;
}

/** A request that is passed on. */
export interface Passing {
  readonly delay: number;
  enter(): Entered;
  leave(status: number, headers: Record<string, unknown>): [string, string][];
}

/** A request that is not passed on, with its response. */
export interface Refusal {
  readonly status: number;
  readonly headers: [string, string][];
  readonly body: string;
}

/** The rules of a service, which the middlewares ask. */
export declare class RateLimits<Request = any> {
  constructor(rules?: Rule<Request>[], options?: RateLimitsOptions);
  /** The names of the headers that the rules read. */
  readonly headers: string[];
  /** Judges a request with its target as the client sent it, and the route that the framework has found. */
  judge(method: string, target: string, headers: Record<string, unknown>, peer: string | undefined, request: Request, route?: string): Passing | Refusal;
  /**
   * Returns the rules of a route: "5/minute" is a fixed window, and "5/minute;100/hour" are two limits. Two calls with one
   * name and equal options share a limit.
   */
  route(limit: string | string[], options?: RouteOptions<Request>): RateLimits<Request>;
  /** True if functions of a route's rules are awaited by `judgeLater`. */
  readonly isAwaited: boolean;
  /** Judges a request of a route after the promises of its functions. */
  judgeLater(...input: Parameters<RateLimits<Request>["judge"]>): Promise<Passing | Refusal>;
  /** Changes the limit of a rule or plan in this process while requests go on. */
  change(name: string, limit: string): void;
  /** Forgets a client of a rule or plan. */
  reset(name: string, key: Key): void;
  /** Takes back one request of a client under a rule or plan. */
  refund(name: string, key: Key, cost?: number): void;
}

/** A store for express-rate-limit. */
export declare class EarrrlStore {
  constructor(options?: StoreOptions);
  localKeys: boolean;
  prefix: string;
  /** The length of the windows, 60000 until `init` sets it. */
  windowMs: number;
  init(options: { windowMs: number }): void;
  get(key: string): Promise<{ totalHits: number; resetTime: Date } | undefined>;
  increment(key: string): Promise<{ totalHits: number; resetTime: Date }>;
  decrement(key: string): Promise<void>;
  resetKey(key: string): Promise<void>;
  /** Forgets the counts of all keys, those of other processes and prefixes in the same file among them. */
  resetAll(): void;
}

export interface StoreOptions {
  /** The directory of the files that processes share. Without it, the store counts for this process. */
  path?: string;
  /** The greatest number of clients for each length of windows, 100000 by default. */
  capacity?: number;
  /** The text before each key, for several stores in one directory. */
  prefix?: string;
  clock?: Clock;
}

/** The store of a route, or of the application, for @fastify/rate-limit. */
export interface FastifyStore {
  incr(key: string, callback: (error: Error | null, result?: { current: number; ttl: number }) => void, timeWindow: number, max: number): void;
  /** Returns the count to the callback, and counts nothing. */
  read(key: string, callback: (error: Error | null, result?: { current: number; ttl: number }) => void, timeWindow: number, max: number): void;
  child(settings: object): FastifyStore;
}

/** Returns a class of stores for @fastify/rate-limit, which share their counts: its option `store`. */
export declare function fastifyStore(options?: StoreOptions): new (settings?: object) => FastifyStore;

/** A storage for @nestjs/throttler. */
export declare class EarrrlThrottlerStorage {
  constructor(options?: StoreOptions);
  /** Counts a request, and blocks a client that is above its limit. Lengths are in milliseconds, waits in seconds. */
  increment(key: string, ttl: number, limit: number, blockDuration: number, throttlerName: string): Promise<{
    totalHits: number;
    timeToExpire: number;
    isBlocked: boolean;
    timeToBlockExpire: number;
  }>;
}
