/// <reference types="node" />
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Entered, RateLimits, Refusal } from "./index";

/** Returns the middleware for Express, Connect and node:http. A handler finds `request.earrrl`. */
declare function rateLimit(
  limits: RateLimits,
  options?: { respond?: (request: any, refusal: Refusal) => { type: string; body: string | Buffer } },
): (request: IncomingMessage & { earrrl?: Entered }, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;

declare namespace rateLimit {
  export { rateLimit };
}
export = rateLimit;
