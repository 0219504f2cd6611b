// Rate limits for Express, Connect and node:http.
"use strict";
const { afterHost, checkMiddleware, chosen, judge, setHeaders, withBody } = require("./node.cjs");

function rateLimit(service, limit, options) {
  const [limits, { respond }] = chosen(service, limit, options);
  checkMiddleware(limits, { respond });
  const proceed = (found, request, response, next) => {
    try {
      if (found.status !== undefined) return refuse(found, request, response, respond);
    } catch (error) {
      return next(error);
    }
    request.earrrl = found;
    next();
  };
  return (request, response, next) => {
    let found;
    try {
      found = judge(limits, request, request, response, targetOf, routeOf);
    } catch (error) {
      return next(error);
    }
    if (!(found instanceof Promise)) return proceed(found, request, response, next);
    return found.then((later) => proceed(later, request, response, next), next);
  };
}

// Returns the path by which Express looks for the route, without what express-ws adds to that of a WebSocket; otherwise the
// target.
function targetOf({ baseUrl, path, originalUrl, url, ws }) {
  if (typeof path !== "string") return originalUrl ?? url;
  return afterHost(baseUrl + (ws ? path.replace(/\/\.websocket$/, "") : path));
}

// Returns the route, which Express knows in the middlewares of the route itself.
const routeOf = ({ baseUrl = "", route }) => route && baseUrl + String(route.path);

function refuse(refusal, request, response, respond) {
  const { status, headers, body } = withBody(refusal, respond, request);
  setHeaders(response, headers);
  response.statusCode = status;
  response.end(body);
}

// The default export too, as that of express-rate-limit.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
