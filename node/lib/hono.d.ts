import type { MiddlewareHandler } from "hono";
import type { RateLimits, Refusal } from "./index";

/** Returns the middleware for Hono. A handler finds `context.get("earrrl")`. */
export declare function rateLimit(
  limits: RateLimits,
  options?: {
    /** The connection's address, by default that of @hono/node-server. */
    peer?: (context: any) => string | undefined;
    respond?: (context: any, refusal: Refusal) => { type: string; body: string };
  },
): MiddlewareHandler;
