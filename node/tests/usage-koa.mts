// The middleware for Koa, as a service in TypeScript uses it: compiled, not run.
import Router from "@koa/router";
import { RateLimits } from "earrrl";
import koaDefault, { rateLimit as koaLimit } from "earrrl/koa";
import Koa from "koa";

const limits = new RateLimits();
const koa = new Koa();
koa.use(koaLimit(limits, { respond: (context, refusal) => ({ type: "text/plain", body: `${context.path} ${refusal.status}` }) }));
koa.use((context) => context.state.earrrl?.settlement?.charge(1));
const router = new Router();
router.get("/", koaDefault(limits, "5/minute", { key: async (context: Koa.Context) => context.get("x-key"), name: "login" }), (context) => {
  context.body = context.state.earrrl?.verdict?.rule;
});
