import type { Context, Middleware } from "koa";
import type { Entered, RateLimits, Refusal, RouteOptions } from "./index";

declare module "koa" {
  interface DefaultState {
    earrrl?: Entered;
  }
}

interface Options {
  respond?: (context: Context, refusal: Refusal) => { type: string; body: string | Buffer };
}

/** Returns the middleware for Koa. A handler finds `context.state.earrrl`. */
declare function rateLimit(limits: RateLimits, options?: Options): Middleware;
/** Returns the middleware of a route, which has a limit of its own, such as "5/minute". */
declare function rateLimit(limits: RateLimits, limit: string | string[], options?: RouteOptions & Options): Middleware;

declare namespace rateLimit {
  export { rateLimit };
}
export = rateLimit;
