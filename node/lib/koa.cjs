// Rate limits for Koa.
"use strict";
const { afterHost, checkMiddleware, chosen, judge, setHeaders, withBody } = require("./node.cjs");

function rateLimit(service, limit, options) {
  const [limits, { respond }] = chosen(service, limit, options);
  checkMiddleware(limits, { respond });
  return async (context, next) => {
    const { req, res } = context;
    const found = await judge(limits, req, context, res, targetOf, routeOf);
    if (found.status !== undefined) return refuse(found, context, respond);
    context.state.earrrl = found;
    await next();
  };
}

// Returns the path by which applications look for the route, with the part that koa-mount has taken from it. Koa itself
// reads the path of the target as it came, since its parser removes or escapes some bytes.
function targetOf({ path, originalUrl, request }) {
  const asked = Object.create(request, { req: { value: { url: originalUrl } } }).path;
  return afterHost(path === "/" || asked.endsWith(path) ? asked : path);
}

// Returns the route, which @koa/router knows in its middlewares. Its list has the routes of other methods, too.
function routeOf({ matched, method }) {
  const route = matched?.findLast(({ methods }) => methods.includes(method));
  return route && String(route.path);
}

function refuse(refusal, context, respond) {
  const { status, headers, body } = withBody(refusal, respond, context);
  context.status = status;
  setHeaders(context.res, headers);
  context.body = body;
}

// The default export too.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
