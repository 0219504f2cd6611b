// The middlewares over Node's own requests and responses, of HTTP/1 and HTTP/2.
"use strict";
const { ServerResponse } = require("node:http");
const { setTimeout: wait } = require("node:timers/promises");
const { isObject } = require("./limiter.cjs");

// Judges a request. Returns the refusal, which has a status, or the values for the handler; then the response gets the
// headers. Returns a promise only if the request waits for something, since promises take longer than decisions.
// `targetOf` and `routeOf` are called only if a rule reads the target or the route.
function judge(limits, raw, request, response, targetOf, routeOf) {
  const { method, headers, socket } = raw;
  const target = limits.readsTarget ? targetOf(request) : "/";
  const route = limits.readsRoute ? routeOf(request) : undefined;
  if (!limits.isAwaited) return treat(limits.judge(method, target, headers, socket.remoteAddress, request, route), response);
  return limits.judgeLater(method, target, headers, socket.remoteAddress, request, route).then((judged) => treat(judged, response));
}

function treat(judged, response) {
  if (judged.status !== undefined) return judged;
  if (judged.delay > 0) return wait(judged.delay).then(() => pass(judged, response));
  return pass(judged, response);
}

function pass(judged, response) {
  const entered = judged.enter();
  if (!judged.addsNothing) leaveWith(judged, response);
  return entered;
}

function leaveWith(passing, response) {
  const { writeHead } = response;
  let left = false;
  response.writeHead = function (status, reason, headers) {
    if (left) return writeHead.call(response, status, reason, headers);
    left = true;
    let given = isObject(reason) ? reason : headers;
    const isList = Array.isArray(given);
    const added = passing.leave(status, passing.readsResponse ? { ...response.getHeaders(), ...byName(isList ? given : Object.entries(given ?? {})) } : {});
    if (response.getHeaderNames().length > 0 || !(response instanceof ServerResponse)) {
      // If a header is set beside a list, Node 20 sets those of the list one by one, and keeps the last of each name.
      for (const [name, value] of added) append(response, name, value);
    } else {
      given = withAdded(given ?? {}, added);
    }
    return typeof reason === "string" ? writeHead.call(response, status, reason, given) : writeHead.call(response, status, given);
  };
  if (!passing.readsResponse) return;
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

// Returns the headers of a call of `writeHead` and added ones as a list, which takes less time than an object beside
// headers that are set: Node would put both into one object.
function withAdded(given, added) {
  if (Array.isArray(given) && Array.isArray(given[0])) return given.concat(added);
  const list = Array.isArray(given) ? [...given] : [];
  if (!Array.isArray(given)) for (const name of Object.keys(given)) list.push(name, given[name]);
  for (const [name, value] of added) {
    const place = placeOf(name, list);
    if (place < 0) list.push(name, value);
    else list[place + 1] = [list[place + 1], value].flat();
  }
  return list;
}

// Returns a path that is known to have no host in front of it, as `//host/path` would have.
const afterHost = (path) => path.replace(/^\/+/, "/");

// Adds a header beside those of the same name. `response.appendHeader` is missing over HTTP/2 before Node 20.12.
function append(response, name, value) {
  const before = response.getHeader(name);
  response.setHeader(name, before === undefined ? value : [before, value].flat());
}

// Sets the headers of a denial. Those with items of several limits stand beside what is there.
function setHeaders(response, headers) {
  for (const [name, value] of headers) {
    if (isList(name)) append(response, name, value);
    else response.setHeader(name, value);
  }
}

// Returns true for a header that has an item of each limit. Of all others, such as `Retry-After`, a response has one.
const isList = (name) => name.startsWith("ratelimit");

// Returns the place of a name in a list of names and values in turn, or -1. Programs that replace Node's response, such as
// Fastify's `inject`, keep the last value of each name.
function placeOf(name, list) {
  for (let place = 0; place < list.length; place += 2) {
    if (list[place].length === name.length && list[place].toLowerCase() === name) return place;
  }
  return -1;
}

// Returns the headers of a list of pairs, or of names and values in turn, by their names in lower case.
function byName(list) {
  const pairs = Array.isArray(list[0]) ? list : list.flatMap((name, place) => (place % 2 ? [] : [[name, list[place + 1]]]));
  return Object.fromEntries(pairs.map(([name, value]) => [String(name).toLowerCase(), value]));
}

// Returns a denial with the body that a function of the application may choose.
function withBody(refusal, respond, request) {
  const own = respond?.(request, refusal);
  if (!own) return refusal;
  const headers = refusal.headers.filter(([name]) => name !== "content-type");
  return { status: refusal.status, headers: [...headers, ["content-type", own.type]], body: own.body };
}

// Returns the rules and the options of a middleware: those of a route, if a limit stands before the options. A limit that
// is missing there, such as a variable of the environment, is an error of the route.
function chosen(limits, limit, options) {
  const isOfRoute = options !== undefined || Array.isArray(limit) || !isObject(limit ?? {});
  if (!isOfRoute) return [limits, limit ?? {}];
  checkMiddleware(limits, {});
  const { respond, peer, ...rule } = options ?? {};
  return [limits.route(limit, rule), { respond, peer }];
}

// Throws an error unless the arguments of a middleware are the rules and functions.
function checkMiddleware(limits, functions) {
  if (typeof limits?.judge !== "function") throw new TypeError("limits: expected RateLimits");
  for (const [name, value] of Object.entries(functions)) {
    if (value !== undefined && typeof value !== "function") throw new TypeError(`${name}: expected a function`);
  }
}

module.exports = { afterHost, checkMiddleware, chosen, isList, judge, setHeaders, withBody };
