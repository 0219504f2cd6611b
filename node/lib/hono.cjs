// Rate limits for Hono.
"use strict";
const { setTimeout: wait } = require("node:timers/promises");
const { checkMiddleware, chosen, isList, withBody } = require("./node.cjs");

// The connection's address under @hono/node-server.
const socketOf = (context) => context.env?.incoming?.socket?.remoteAddress;

function rateLimit(service, limit, options) {
  const [limits, { peer = socketOf, respond }] = chosen(service, limit, options);
  checkMiddleware(limits, { peer, respond });
  return async (context, next) => {
    const request = context.req.raw;
    const headers = Object.fromEntries(request.headers);
    // The last route that matches is that of the handler.
    const route = context.req.matchedRoutes.at(-1)?.path;
    const input = [request.method, request.url, headers, peer(context), context, route];
    const judged = limits.isAwaited ? await limits.judgeLater(...input) : limits.judge(...input);
    if (judged.status !== undefined) return refuse(judged, context, respond);
    if (judged.delay > 0) await wait(judged.delay);
    context.set("earrrl", judged.enter());
    try {
      await next();
    } catch (error) {
      judged.leave(499, {});
      throw error;
    }
    const { status, headers: answered } = context.res;
    for (const [name, value] of judged.leave(status, Object.fromEntries(answered))) context.header(name, value, { append: true });
  };
}

function refuse(refusal, context, respond) {
  const { status, headers, body } = withBody(refusal, respond, context);
  for (const [name, value] of headers) context.header(name, value, { append: isList(name) });
  return context.body(body, status);
}

// The default export too.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
