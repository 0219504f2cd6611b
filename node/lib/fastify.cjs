// Rate limits for Fastify.
"use strict";
const { createHash } = require("node:crypto");
const { afterHost, checkMiddleware, judge } = require("./node.cjs");
const { routeOf } = require("./stores.cjs");

function rateLimit(limits, { respond } = {}) {
  checkMiddleware(limits, { respond });
  const plugin = (fastify, options, done) => {
    fastify.decorateRequest("earrrl", null);
    const routes = new WeakMap();
    // The rules of the application come first, then those of the route's `config.rateLimit`.
    fastify.addHook("onRequest", async (request, reply) => {
      if (await apply(limits, request, reply, respond)) return reply;
      const config = request.routeOptions?.config?.rateLimit;
      if (config === undefined) return;
      // Fastify has one object for the configuration of each route.
      const route = request.routeOptions.config;
      if (!routes.has(route)) routes.set(route, routeLimits(limits, request.routeOptions, config));
      if (await apply(routes.get(route), request, reply, config.respond ?? respond)) return reply;
    });
    done();
  };
  // The hook applies to the routes of the whole application, not to those of the plugin.
  plugin[Symbol.for("skip-override")] = true;
  return plugin;
}

// Returns the rules of a route, which is named after its method and path unless the configuration has a name.
function routeLimits(limits, { method, url }, config) {
  const { limit, respond, ...rule } = typeof config === "string" || Array.isArray(config) ? { limit: config } : config;
  const route = routeOf(method, url);
  const readable = route.toLowerCase().replace(/[^a-z0-9_]+/g, "-").slice(0, 50);
  const hash = createHash("sha256").update(route).digest("hex").slice(0, 8);
  return limits.route(limit, { name: `${readable}-${hash}`, ...rule });
}

// Judges a request, and answers it if it is denied. Returns true then.
async function apply(limits, request, reply, respond) {
  const { refusal, entered } = await judge(limits, request.raw, afterHost(request.originalUrl), request, reply.raw, request.routeOptions?.url ?? "");
  request.earrrl = entered ?? null;
  if (!refusal) return false;
  reply.code(refusal.status);
  for (const [name, value] of refusal.headers) reply.header(name, value);
  const own = respond?.(request, refusal);
  if (own) reply.type(own.type);
  // Fastify adds a charset to the type of a text.
  reply.send(Buffer.from(own ? own.body : refusal.body));
  return true;
}

// The default export too.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
