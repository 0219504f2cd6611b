// Rate limits for Fastify.
"use strict";
const { afterHost, checkMiddleware, judge } = require("./node.cjs");

function rateLimit(limits, { respond } = {}) {
  checkMiddleware(limits, { respond });
  const plugin = (fastify, options, done) => {
    fastify.decorateRequest("earrrl", null);
    fastify.addHook("onRequest", async (request, reply) => {
      const { refusal, entered } = await judge(limits, request.raw, afterHost(request.originalUrl), request, reply.raw, request.routeOptions?.url ?? "");
      request.earrrl = entered ?? null;
      if (!refusal) return;
      reply.code(refusal.status);
      for (const [name, value] of refusal.headers) reply.header(name, value);
      const own = respond?.(request, refusal);
      if (own) reply.type(own.type);
      // Fastify adds a charset to the type of a text.
      return reply.send(Buffer.from(own ? own.body : refusal.body));
    });
    done();
  };
  // The hook applies to the routes of the whole application, not to those of the plugin.
  plugin[Symbol.for("skip-override")] = true;
  return plugin;
}

module.exports = { rateLimit };
