// Rate limits for Fastify.
"use strict";
const { createHash } = require("node:crypto");
const { isObject } = require("./limiter.cjs");
const { afterHost, checkMiddleware, judge, setHeaders, withBody } = require("./node.cjs");
const { routeOf } = require("./stores.cjs");

function rateLimit(limits, { respond } = {}) {
  checkMiddleware(limits, { respond });
  const plugin = (fastify, options, done) => {
    fastify.decorateRequest("earrrl", null);
    const routes = new WeakMap();
    const applyRoute = (config, request, reply, next) => {
      let own = routes.get(config);
      try {
        if (!own) routes.set(config, (own = routeLimits(limits, request.routeOptions, config.rateLimit)));
      } catch (error) {
        return next(error);
      }
      apply(own, request, reply, config.rateLimit.respond ?? respond, next);
    };
    // The rules of the application come first, then those of the route's `config.rateLimit`.
    fastify.addHook("onRequest", (request, reply, next) => {
      // Fastify has one object for the configuration of each route.
      const config = request.routeOptions?.config;
      if (config?.rateLimit === undefined) return apply(limits, request, reply, respond, next);
      apply(limits, request, reply, respond, (error) => (error ? next(error) : applyRoute(config, request, reply, next)));
    });
    done();
  };
  // The hook applies to the routes of the whole application, not to those of the plugin.
  plugin[Symbol.for("skip-override")] = true;
  return plugin;
}

// Returns the rules of a route, which is named after its method and path unless the configuration has a name.
function routeLimits(limits, { method, url }, config) {
  const { limit, respond, ...rule } = isObject(config) && !Array.isArray(config) ? config : { limit: config };
  const route = routeOf(method, url);
  const readable = route.toLowerCase().replace(/[^a-z0-9_]+/g, "-").slice(0, 50);
  const hash = createHash("sha256").update(route).digest("hex").slice(0, 8);
  return limits.route(limit, { name: `${readable}-${hash}`, ...rule });
}

// Judges a request. Answers it if it is denied, or else calls the next function, which gets the error if there is one.
function apply(limits, request, reply, respond, next) {
  let found;
  try {
    found = judge(limits, request.raw, request, reply.raw, targetOf, urlOf);
  } catch (error) {
    return next(error);
  }
  if (!(found instanceof Promise)) return proceed(found, request, reply, respond, next);
  found.then((later) => proceed(later, request, reply, respond, next), next);
}

function proceed(found, request, reply, respond, next) {
  const isRefused = found.status !== undefined;
  request.earrrl = isRefused ? null : found;
  if (!isRefused) return next();
  try {
    refuse(found, request, reply, respond);
  } catch (error) {
    next(error);
  }
}

const targetOf = ({ originalUrl }) => afterHost(originalUrl);

const urlOf = ({ routeOptions }) => routeOptions?.url ?? "";

function refuse(refusal, request, reply, respond) {
  const { status, headers, body } = withBody(refusal, respond, request);
  reply.code(status);
  setHeaders({ getHeader: (name) => reply.getHeader(name), setHeader: (name, value) => reply.header(name, value) }, headers);
  // Fastify adds a charset to the type of a text.
  reply.send(Buffer.from(body));
}

// The default export too.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
