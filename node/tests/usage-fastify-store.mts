// The store for @fastify/rate-limit, as a service in TypeScript uses it: compiled, not run. The types of that package and of
// "earrrl/fastify" exclude each other, since both describe the setting `rateLimit` of a route.
import rateLimit from "@fastify/rate-limit";
import { fastifyStore } from "earrrl";
import Fastify from "fastify";

const app = Fastify();
await app.register(rateLimit, { max: 5, timeWindow: "1 minute", store: fastifyStore({ path: "/dev/shm/a", capacity: 10, prefix: "a:" }) });
app.get("/", { config: { rateLimit: { max: 1 } } }, () => "hello");
