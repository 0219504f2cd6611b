// Time of a check from Node, beside the limiters in memory and on Redis of other packages, in one run: the table of
// docs/node.md. `just bench-node` runs it in target/bench-node; the path of valkey-server or redis-server is its argument.
//
// Each row is the fastest of many runs of 1,000 checks, one after the other, of 10,000 clients, in microseconds: other
// programs of the machine only add to it. Redis runs on this machine without persistence, and is asked over a Unix socket.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { setTimeout as wait } from "node:timers/promises";
import { EarrrlStore, Engine, Limiter } from "earrrl";
import { MemoryStore } from "express-rate-limit";
import { Redis } from "ioredis";
import { RedisStore } from "rate-limit-redis";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";

const CHECKS = 1000;
const CLIENTS = Array.from({ length: 10_000 }, (_, place) => `192.0.2.${place}`);
const RULE = "gcra 1000000/s burst=1000000";
const WINDOW = { windowMs: 60_000 };

async function fastest(work, runs) {
  let best = Infinity;
  for (let run = 0; run < runs; run++) {
    const clients = CLIENTS.slice((run % 10) * CHECKS, (run % 10 + 1) * CHECKS);
    const start = process.hrtime.bigint();
    for (const client of clients) {
      const answer = work(client);
      if (answer instanceof Promise) await answer;
    }
    best = Math.min(best, Number(process.hrtime.bigint() - start) / CHECKS);
  }
  return (best / 1000).toFixed(2);
}

function started(store) {
  store.init(WINDOW);
  return store;
}

function rows(folder, redis) {
  const [limiter, shared] = [new Limiter(RULE), new Limiter(RULE, { path: `${folder}/limiter` })];
  const engine = new Engine({ a: RULE, b: RULE });
  const [store, sharedStore, memory] = [new EarrrlStore(), new EarrrlStore({ path: `${folder}/store` }), new MemoryStore()].map(started);
  const onRedis = started(new RedisStore({ sendCommand: (command, ...input) => redis.call(command, ...input) }));
  const points = { points: 1_000_000, duration: 60 };
  const [flexible, flexibleOnRedis] = [new RateLimiterMemory(points), new RateLimiterRedis({ ...points, storeClient: redis })];
  return [
    ["`Limiter.check`", 300, (client) => limiter.check(client)],
    ["`Limiter.check`, in a file", 300, (client) => shared.check(client)],
    ["`Engine.check` of two rules", 300, (client) => engine.check({ a: client, b: client })],
    ["`EarrrlStore.increment`", 300, (client) => store.increment(client)],
    ["`EarrrlStore.increment`, in a file", 300, (client) => sharedStore.increment(client)],
    ["express-rate-limit, `MemoryStore.increment`", 300, (client) => memory.increment(client)],
    ["rate-limit-redis with ioredis, `RedisStore.increment`", 20, (client) => onRedis.increment(client)],
    ["rate-limiter-flexible, `RateLimiterMemory.consume`", 300, (client) => flexible.consume(client)],
    ["rate-limiter-flexible with ioredis, `RateLimiterRedis.consume`", 20, (client) => flexibleOnRedis.consume(client)],
  ];
}

const folder = mkdtempSync("/dev/shm/earrrl-");
const path = `${folder}/redis.sock`;
const server = spawn(process.argv[2] ?? "redis-server", ["--port", "0", "--unixsocket", path, "--save", "", "--dir", folder], { stdio: "ignore" });
try {
  while (!existsSync(path)) await wait(20);
  const redis = new Redis({ path });
  console.log("| | µs |\n|---|---|");
  for (const [name, runs, work] of rows(folder, redis)) console.log(`| ${name} | ${await fastest(work, runs)} |`);
  redis.disconnect();
} finally {
  server.kill();
  rmSync(folder, { recursive: true });
}
// The stores of other packages have timers.
process.exit();
