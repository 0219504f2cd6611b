// Time of a check from Node, beside the stores of express-rate-limit: run by `just bench-node`, in target/node.
// Each row is the fastest of 15 runs over 10,000 clients, in microseconds.
import { mkdtempSync, rmSync } from "node:fs";
import { EarrrlStore, Limiter } from "earrrl";
import { MemoryStore } from "express-rate-limit";

const CLIENTS = Array.from({ length: 10_000 }, (_, place) => `192.0.2.${place}`);
const RULE = "gcra 1000000/s burst=1000000";

async function fastest(work) {
  let best = Infinity;
  for (let run = 0; run < 15; run++) {
    const start = process.hrtime.bigint();
    for (const client of CLIENTS) {
      const answer = work(client);
      if (answer instanceof Promise) await answer;
    }
    best = Math.min(best, Number(process.hrtime.bigint() - start) / CLIENTS.length);
  }
  return (best / 1000).toFixed(2);
}

const folder = mkdtempSync("/dev/shm/earrrl-");
const [limiter, shared] = [new Limiter(RULE), new Limiter(RULE, { path: `${folder}/limiter` })];
const stores = [new EarrrlStore(), new MemoryStore()];
for (const store of stores) store.init({ windowMs: 60_000 });
const rows = [
  ["`Limiter.check`", (client) => limiter.check(client)],
  ["`Limiter.check`, in a file", (client) => shared.check(client)],
  ["`EarrrlStore.increment`", (client) => stores[0].increment(client)],
  ["`MemoryStore.increment` of express-rate-limit", (client) => stores[1].increment(client)],
];
console.log("| | µs |\n|---|---|");
for (const [name, work] of rows) console.log(`| ${name} | ${await fastest(work)} |`);
stores[1].shutdown();
rmSync(folder, { recursive: true });
