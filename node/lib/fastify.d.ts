/// <reference types="node" />
import type { FastifyPluginCallback } from "fastify";
import type { RateLimits, Refusal } from "./index";

/** Returns a plugin for all routes of an application. A handler finds `request.earrrl`. */
export declare function rateLimit(
  limits: RateLimits,
  options?: { respond?: (request: any, refusal: Refusal) => { type: string; body: string | Buffer } },
): FastifyPluginCallback;
