// Every part of the package's interface, as a service in TypeScript uses it: compiled, not run.
import earrrl, { type Decision, EarrrlStore, EarrrlThrottlerStorage, Engine, type Entered, Limiter, ManualClock, RateLimits, type Rule } from "earrrl";
import expressDefault, { rateLimit as expressLimit } from "earrrl/express";
import fastifyDefault, { rateLimit as fastifyLimit } from "earrrl/fastify";
import honoDefault, { rateLimit as honoLimit } from "earrrl/hono";
import express, { type Request } from "express";
import { rateLimit } from "express-rate-limit";
import Fastify from "fastify";
import { type Context, Hono } from "hono";
import { type ThrottlerModuleOptions } from "@nestjs/throttler";

const limiter = new Limiter("gcra 1/s burst=9", { path: "/dev/shm/a", capacity: 10, action: "delay", maxDelay: 5, maxCost: 2.5, name: "login" });
const decisions: Decision[] = [limiter.check("a"), limiter.check(Buffer.from("a"), 2), limiter.checkAt("a", 5n), limiter.checkAt("a", 5, 1), limiter.peek("a"), limiter.charge("a", 3)];
for (const { at, rule, outcome, rate, delay } of decisions) {
  limiter.refund("a", 1, at);
  const texts: [string, "allow" | "observe" | "quarantine" | "delay" | "shadow-ban" | "deny"] = [rule, outcome];
  console.log(texts, rate === null ? 0 : rate.toFixed(2), delay.toFixed(0));
}
const headers: Record<string, string> = decisions[0]!.headers();
console.log(headers, limiter.check(7), limiter.check(7n), limiter.rule.length + limiter.size + limiter.clear());

const engine = new Engine({ login: "gcra 1/s burst=9", address: "fixed-window 5/1m" }, { path: "/dev/shm/b", capacity: 10 });
const both = engine.check({ login: "alice", address: ["192.0.2.7", 5] });
engine.refund({ login: Buffer.from("alice") }, both.at);
engine.reset(both.rule, "alice");
console.log(engine.peek({}), engine.charge({ login: "a" }), engine.rules.login);

const clock = new ManualClock(5);
clock.advance(clock.now());
console.log(new Limiter("5/m", { clock }), new Engine({}, { clock: "Date.now" }), new RateLimits([], { clock }), new EarrrlStore({ clock: "Date.now" }), new EarrrlThrottlerStorage({ clock }));

const rule: Rule<Request> = {
  name: "address", limit: "gcra 5/s burst=20", key: ["client", (request) => request.get("x-api-key")], paths: ["/v1/*"], missing: 403, cost: (request) => request.path.length,
  costAfter: (status) => status < 300, settled: true, exempt: (request) => request.path === "/healthz",
  plans: [{ name: "paid", limit: "gcra 50/s burst=20", applies: (request) => request.ip === "::1" }],
  limitBy: (request) => (request.ip === "::2" ? "gcra 9/s burst=9" : undefined),
};
const limits = new RateLimits<Request>([rule], { trustedProxies: ["10.0.0.0/8"], hops: 1, ipv6Prefix: 64, status: 503, alwaysVerdict: true });
limits.change("address", "gcra 1/s burst=9");
limits.reset("address", "192.0.2.7");
limits.refund("address", "192.0.2.7", 2);
console.log(limits.headers);

const app = express();
app.use(expressDefault(limits));
app.use(expressLimit(limits, { respond: (request, refusal) => ({ type: "text/plain", body: refusal.body }) }));
app.use(rateLimit({ windowMs: 60_000, limit: 5, store: new EarrrlStore({ path: "/dev/shm/c", capacity: 10, prefix: "a:" }) }));
app.use((request: Request & { earrrl?: Entered }) => request.earrrl?.settlement?.charge(2));
app.get("/", expressLimit(new RateLimits(), "5/minute;100/hour", { key: async (request: Request) => request.get("x-key"), name: "login", respond: () => ({ type: "a/b", body: "c" }) }), (request, response) => {
  response.send(request.earrrl?.verdict?.rule);
});
const fastify = Fastify();
fastify.register(fastifyLimit(limits));
fastify.get("/", { config: { rateLimit: { limit: "5/minute", key: "everyone" } } }, (request) => request.earrrl?.settlement?.charge(1));
new Hono().get("/", honoLimit(new RateLimits(), ["5/minute"], { cost: async () => 2 }), (context) => context.text(context.get("earrrl").verdict?.rule ?? ""));
const throttled: ThrottlerModuleOptions = { throttlers: [{ limit: 5, ttl: 60_000 }], storage: new EarrrlThrottlerStorage({ path: "/dev/shm/d" }) };
console.log(throttled, new earrrl.Limiter("5/minute"), honoDefault(limits), fastifyDefault(limits));
// @ts-expect-error A limit is a text.
expressLimit(limits, 5);
new Hono().use(honoLimit(new RateLimits<Context>([]), { peer: (context) => context.req.header("x-peer") }));

// @ts-expect-error A key is no object.
limiter.check({});
// @ts-expect-error There is no such clock.
new Limiter("5/m", { clock: "Date" });
// @ts-expect-error There is no such action.
new Limiter("gcra 1/s burst=9", { action: "ban" });
// @ts-expect-error A charge has one cost.
engine.check({ login: ["a", 1, 2] });
// @ts-expect-error Decisions are made by limiters.
new (both.constructor as typeof Decision)();
