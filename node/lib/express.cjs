// Rate limits for Express, Connect and node:http.
"use strict";
const { checkMiddleware, judge } = require("./node.cjs");

function rateLimit(limits, { respond } = {}) {
  checkMiddleware(limits, { respond });
  return async (request, response, next) => {
    let judged;
    try {
      judged = await judge(limits, request, request.originalUrl ?? request.url, request, response);
      if (judged.refusal) return refuse(judged.refusal, request, response, respond);
    } catch (error) {
      return next(error);
    }
    request.earrrl = judged.entered;
    next();
  };
}

function refuse(refusal, request, response, respond) {
  for (const [name, value] of refusal.headers) response.appendHeader(name, value);
  const own = respond?.(request, refusal);
  if (own) response.setHeader("content-type", own.type);
  response.statusCode = refusal.status;
  response.end(own ? own.body : refusal.body);
}

// The default export too, as that of express-rate-limit.
module.exports = rateLimit;
module.exports.rateLimit = rateLimit;
