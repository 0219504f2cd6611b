// The middlewares over HTTP/1 and HTTP/2, and the headers that handlers send, as each version of Node has them.
import assert from "node:assert/strict";
import { once } from "node:events";
import * as http from "node:http";
import * as http2 from "node:http2";
import test from "node:test";
import { serve as serveHono } from "@hono/node-server";
import { RateLimits } from "earrrl";
import { rateLimit as forExpress } from "earrrl/express";
import { rateLimit as forFastify } from "earrrl/fastify";
import { rateLimit as forHono } from "earrrl/hono";
import Fastify from "fastify";
import { Hono } from "hono";

const listening = async (server) => (server.listening || (await once(server, "listening")), server);
const COOKIES = ["a=1", "b=2"];
const SHARED = Object.freeze({ "Set-Cookie": COOKIES });
// Ways to answer with two cookies and a status.
const ANSWERS = {
  "setHeader": (response) => (response.setHeader("set-cookie", COOKIES), response.writeHead(200)),
  "an object": (response) => response.writeHead(200, { "Set-Cookie": COOKIES }),
  "an object of all responses": (response) => response.writeHead(200, SHARED),
  "a status text and an object": (response) => response.writeHead(200, "OK", { "Set-Cookie": COOKIES }),
};
// Over HTTP/1, also a list of names and values in turn.
const LISTS = {
  "a list": (response) => response.writeHead(200, ["Set-Cookie", "a=1", "Set-Cookie", "b=2", "RateLimit-Own", "x"]),
  "a list of pairs": (response) => response.writeHead(200, [["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"]]),
};

// A handler behind two middlewares of one kind: their headers stand beside each other.
function handler(answer, readsResponse) {
  const costs = [];
  const costAfter = readsResponse ? (status, headers) => (costs.push(headers["set-cookie"]), 0) : undefined;
  const limits = ["one", "other"].map((name) => new RateLimits([{ name, limit: "gcra 1/h burst=2", costAfter }]));
  const [one, other] = limits.map((own) => forExpress(own));
  const failed = (response) => (error) => response.destroy(error);
  const handle = (request, response) => one(request, response, (error) => (error ? failed(response)(error) : other(request, response, () => (answer(response), response.end("hello")))));
  return { handle, costs };
}

async function overHttp1(server) {
  const request = http.get({ port: server.address().port, host: "127.0.0.1", agent: false });
  const [response] = await once(request, "response");
  let body = "";
  for await (const part of response) body += part;
  return { status: response.statusCode, headers: response.headers, body };
}

async function overHttp2(server) {
  const session = http2.connect(`http://127.0.0.1:${server.address().port}`);
  try {
    const stream = session.request({ ":path": "/" });
    const [headers] = await once(stream, "response");
    let body = "";
    for await (const part of stream) body += part;
    return { status: headers[":status"], headers, body };
  } finally {
    session.close();
  }
}

const PROTOCOLS = {
  "HTTP/1": [http.createServer, overHttp1, { ...ANSWERS, ...LISTS }],
  "HTTP/2": [http2.createServer, overHttp2, ANSWERS],
};

for (const [protocol, [createServer, ask, answers]] of Object.entries(PROTOCOLS)) {
  for (const [name, answer] of Object.entries(answers)) for (const readsResponse of [true, false]) {
    test(`${protocol}: headers by ${name}${readsResponse ? ", read for costs" : ""}`, async () => {
      const { handle, costs } = handler(answer, readsResponse);
      const server = await listening(createServer(handle).listen(0, "127.0.0.1"));
      try {
        for (const left of [1, 0]) {
          const { status, headers, body } = await ask(server);
          assert.deepEqual([status, body, headers["set-cookie"]], [200, "hello", COOKIES]);
          const limits = headers.ratelimit.split(", ").map((limit) => limit.split(";")[0]);
          assert.deepEqual([limits.sort(), headers.ratelimit.includes(`r=${left}`)], [['"one"', '"other"'], true]);
        }
        assert.equal((await ask(server)).status, 429);
        assert.ok(costs.length === (readsResponse ? 4 : 0) && costs.every((cookie) => cookie !== undefined), String(costs));
      } finally {
        server.close();
      }
    });
  }
}

const RULES = [{ name: "a", limit: "gcra 1/h burst=2", key: ["client", "header:x-none"] }];
const OVER_HTTP2 = {
  fastify: async () => {
    const app = Fastify({ http2: true });
    app.register(forFastify(new RateLimits(RULES)));
    app.get("/", async () => "hello");
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  },
  hono: async () => {
    const app = new Hono();
    app.use(forHono(new RateLimits(RULES)));
    app.get("/", (context) => context.text("hello"));
    return listening(serveHono({ fetch: app.fetch, createServer: http2.createServer, port: 0, hostname: "127.0.0.1" }));
  },
};

for (const [name, serve] of Object.entries(OVER_HTTP2)) {
  test(`HTTP/2: ${name}`, async () => {
    const server = await serve();
    try {
      const found = [];
      for (let turn = 0; turn < 3; turn++) {
        const { status, headers } = await overHttp2(server);
        found.push([status, headers.ratelimit]);
      }
      assert.deepEqual(found.map(([status]) => status), [200, 200, 429]);
      assert.ok(found.every(([, limit]) => /^"a";r=/.test(limit)), String(found));
    } finally {
      server.close();
    }
  });
}

// `inject` loads modules in a way that Node has since 20.19.
const BY_FASTIFY = { "a connection": (app) => overHttp1(app.server) };
if (process.features.require_module) BY_FASTIFY.inject = (app) => app.inject("/").then(({ statusCode: status, headers }) => ({ status, headers }));

for (const [way, ask] of Object.entries(BY_FASTIFY)) {
  test(`Fastify, by ${way}: headers of the application, of the route and of its handler`, async () => {
    const app = Fastify();
    app.register(forFastify(new RateLimits([{ name: "all", limit: "9/day" }])));
    const handler = (request, reply) => reply.header("RateLimit", '"own"').header("set-cookie", COOKIES).send("hello");
    app.get("/", { config: { rateLimit: { limit: "2/day", name: "route" } } }, handler);
    await app.listen({ port: 0, host: "127.0.0.1" });
    for (const expected of [200, 200, 429]) {
      const { status, headers } = await ask(app);
      const limits = [headers.ratelimit].flat().flatMap((text) => text.split(", "));
      const names = limits.map((limit) => limit.split(";")[0]);
      assert.deepEqual([status, names.sort()], [expected, expected === 200 ? ['"all"', '"own"', '"route"'] : ['"all"', '"route"']]);
      if (expected === 200) assert.deepEqual(headers["set-cookie"], COOKIES);
    }
    await app.close();
  });
}
