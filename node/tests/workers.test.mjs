// Real clusters of 8 workers: together they admit what the limit says, whatever happens to the workers.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { newPath } from "./helpers.mjs";
import { services } from "./services.mjs";

const WORKERS = 8;

class Cluster {
  // Waits until a worker listens.
  #listening;

  constructor(service, port) {
    const program = fileURLToPath(new URL("cluster.mjs", import.meta.url));
    this.url = `http://127.0.0.1:${port}`;
    this.primary = spawn(process.execPath, [program, service, port, newPath()], { stdio: ["ignore", "pipe", "inherit"] });
    this.#listening = createInterface(this.primary.stdout)[Symbol.asyncIterator]();
  }

  async start(workers) {
    for (let worker = 0; worker < workers; worker++) await this.#listening.next();
  }

  async get(path) {
    const response = await fetch(this.url + path, { headers: { connection: "close" } });
    return { status: response.status, text: await response.text() };
  }

  // Returns how often each status came to so many requests at once.
  async flood(requests) {
    const counts = {};
    for (const { status } of await Promise.all(Array.from({ length: requests }, () => this.get("/")))) counts[status] = (counts[status] ?? 0) + 1;
    return counts;
  }

  // Kills every worker, and waits for those that replace them.
  async killWorkers() {
    for (const worker of await this.workers()) process.kill(worker, "SIGKILL");
    await this.start(WORKERS);
  }

  async workers() {
    const workers = new Set();
    while (workers.size < WORKERS) workers.add(Number((await this.get("/pid")).text));
    return workers;
  }
}

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}

for (const service of Object.keys(services)) {
  test(`8 workers admit 5 of 1000 requests, although all are killed twice: ${service}`, async () => {
    const cluster = new Cluster(service, await freePort());
    try {
      await cluster.start(WORKERS);
      assert.deepEqual(await cluster.flood(2), { 200: 2 });
      await cluster.killWorkers();
      assert.deepEqual(await cluster.flood(498), { 200: 3, 429: 495 });
      await cluster.killWorkers();
      assert.deepEqual(await cluster.flood(500), { 429: 500 });
    } finally {
      cluster.primary.kill("SIGKILL");
    }
  });
}
