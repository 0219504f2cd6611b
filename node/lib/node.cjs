// The middlewares over Node's own requests and responses.
"use strict";
const { setTimeout: wait } = require("node:timers/promises");

// Judges a request. Returns the refusal, or passes the request on: its response gets the headers.
async function judge(limits, raw, target, request, response) {
  const judged = limits.judge(raw.method, target, raw.headers, raw.socket.remoteAddress, request);
  if (judged.status !== undefined) return { refusal: judged };
  if (judged.delay > 0) await wait(judged.delay);
  const entered = judged.enter();
  leaveWith(judged, response);
  return { entered };
}

function leaveWith(passing, response) {
  const { writeHead } = response;
  let left = false;
  response.writeHead = function (status, ...rest) {
    response.writeHead = writeHead;
    left = true;
    const given = rest.find((value) => value !== null && typeof value === "object" && !Array.isArray(value));
    for (const [name, value] of passing.leave(status, { ...response.getHeaders(), ...given })) response.appendHeader(name, value);
    return writeHead.call(response, status, ...rest);
  };
  // A client that leaves before the response does not avoid the costs that depend on it.
  response.once("close", () => {
    if (left) return;
    try {
      passing.leave(499, {});
    } catch (error) {
      process.emitWarning(error);
    }
  });
}

// Throws an error unless the arguments of a middleware are the rules and functions.
function checkMiddleware(limits, functions) {
  if (typeof limits?.judge !== "function") throw new TypeError("limits: expected RateLimits");
  for (const [name, value] of Object.entries(functions)) {
    if (value !== undefined && typeof value !== "function") throw new TypeError(`${name}: expected a function`);
  }
}

module.exports = { checkMiddleware, judge };
