/// <reference types="node" />
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Entered, RateLimits, Refusal, RouteOptions } from "./index";

declare global {
  namespace Express {
    interface Request {
      earrrl?: Entered;
    }
  }
}

type Respond = (request: any, refusal: Refusal) => { type: string; body: string | Buffer };
type Middleware = (request: IncomingMessage & { earrrl?: Entered }, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;

/** Returns the middleware for Express, Connect and node:http. A handler finds `request.earrrl`. */
declare function rateLimit(limits: RateLimits, options?: { respond?: Respond }): Middleware;
/** Returns the middleware of a route, which has a limit of its own, such as "5/minute". */
declare function rateLimit(limits: RateLimits, limit: string | string[], options?: RouteOptions & { respond?: Respond }): Middleware;

declare namespace rateLimit {
  export { rateLimit };
}
export = rateLimit;
