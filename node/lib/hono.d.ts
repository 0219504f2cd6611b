import type { MiddlewareHandler } from "hono";
import type { Entered, RateLimits, Refusal, RouteOptions } from "./index";

declare module "hono" {
  interface ContextVariableMap {
    earrrl: Entered;
  }
}

interface Options {
  /** The connection's address, by default that of @hono/node-server. */
  peer?: (context: any) => string | undefined;
  respond?: (context: any, refusal: Refusal) => { type: string; body: string };
}

/** Returns the middleware for Hono. A handler finds `context.get("earrrl")`. */
declare function rateLimit(limits: RateLimits, options?: Options): MiddlewareHandler;
/** Returns the middleware of a route, which has a limit of its own, such as "5/minute". */
declare function rateLimit(limits: RateLimits, limit: string | string[], options?: RouteOptions & Options): MiddlewareHandler;

declare namespace rateLimit {
  export { rateLimit };
}
export = rateLimit;
