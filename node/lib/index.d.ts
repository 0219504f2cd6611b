/// <reference types="node" />

export type Key = string | Buffer;
export type Outcome = "allow" | "observe" | "quarantine" | "delay" | "shadow-ban" | "deny";

/** The answer to a request. Waits are in milliseconds. */
export declare class Decision {
  private constructor();
  /** True if the request is answered as allowed: every outcome except "deny". */
  readonly allowed: boolean;
  readonly outcome: Outcome;
  /** The number of requests of cost 1 that would be allowed now, one after the other. */
  readonly remaining: number;
  /** The wait from which on the same request is allowed: 0 if it is allowed, Infinity for never. */
  readonly retryAfter: number;
  /** The wait after which the client's past requests no longer affect decisions. */
  readonly resetAfter: number;
  /** The client's measured rate in cost units per second, or null if the algorithm measures none. */
  readonly rate: number | null;
  /** The rate that the rule allows. */
  readonly limit: number;
  /** The wait for which the request must be held back, for the action "delay". */
  readonly delay: number;
  /** The instant of the decision, for `refund`. */
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
}

/** Decides requests under one rule. */
export declare class Limiter {
  constructor(rule: string, options?: LimiterOptions);
  /** Decides a request and counts it, as the rule's policy demands. */
  check(key: Key, cost?: number): Decision;
  /** Decides a request and counts nothing. */
  peek(key: Key, cost?: number): Decision;
  /** Counts a request even if it is over the limit. */
  charge(key: Key, cost?: number): Decision;
  /** Takes back the request of the decision with this `at`, by default the latest one. */
  refund(key: Key, cost?: number, at?: number): void;
  /** Forgets a client. */
  reset(key: Key): void;
  readonly rule: string;
}

/** A store for express-rate-limit. */
export declare class EarrrlStore {
  constructor(options?: { path?: string; capacity?: number; prefix?: string });
  localKeys: boolean;
  prefix: string;
  windowMs: number;
  init(options: { windowMs: number }): void;
  get(key: string): Promise<{ totalHits: number; resetTime: Date } | undefined>;
  increment(key: string): Promise<{ totalHits: number; resetTime: Date }>;
  decrement(key: string): Promise<void>;
  resetKey(key: string): Promise<void>;
  resetAll(): void;
}
