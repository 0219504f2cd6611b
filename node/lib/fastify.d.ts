/// <reference types="node" />
import type { FastifyPluginCallback } from "fastify";
import type { Entered, RateLimits, Refusal, RouteOptions } from "./index";

type Respond = (request: any, refusal: Refusal) => { type: string; body: string | Buffer };

declare module "fastify" {
  interface FastifyRequest {
    earrrl: Entered | null;
  }
  interface FastifyContextConfig {
    /** The limit of the route, such as "5/minute". */
    rateLimit?: string | string[] | (RouteOptions & { limit: string | string[]; respond?: Respond });
  }
}

/** Returns a plugin for all routes of an application. A handler finds `request.earrrl`. */
declare function rateLimit(limits: RateLimits, options?: { respond?: Respond }): FastifyPluginCallback;

declare namespace rateLimit {
  export { rateLimit };
}
export = rateLimit;
