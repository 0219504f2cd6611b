// The store for express-rate-limit, alone and in a cluster of workers.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { EarrrlStore } from "earrrl";
import express from "express";
import { rateLimit } from "express-rate-limit";

const DAY = 86_400_000;

function newPath() {
  return join(mkdtempSync(join(tmpdir(), "earrrl-")), "states");
}

for (const path of [undefined, newPath()]) {
  test(`a store ${path ? "in a file" : "in this process"}`, async () => {
    const store = new EarrrlStore({ path, prefix: "a:" });
    assert.equal(store.localKeys, !path);
    store.init({ windowMs: DAY });
    assert.equal(await store.get("alice"), undefined);
    for (const expected of [1, 2, 3]) {
      const { totalHits, resetTime } = await store.increment("alice");
      assert.equal(totalHits, expected);
      assert.ok(resetTime > new Date() && resetTime <= new Date(Date.now() + DAY));
    }
    await store.decrement("alice");
    assert.equal((await store.get("alice")).totalHits, 2);
    const other = new EarrrlStore({ path });
    other.init({ windowMs: DAY });
    assert.equal((await other.get("a:alice"))?.totalHits, path && 2);
    await store.resetKey("alice");
    assert.equal(await store.get("alice"), undefined);
  });
}

test("refused windows", () => {
  for (const windowMs of [0, -1, NaN, 1e12]) assert.throws(() => new EarrrlStore().init({ windowMs }), /windowMs/);
});

test("express-rate-limit counts in the store", async () => {
  const app = express();
  app.use(rateLimit({ windowMs: DAY, limit: 2, store: new EarrrlStore(), legacyHeaders: false, standardHeaders: "draft-8" }));
  app.get("/", (request, response) => response.send("hello"));
  const server = app.listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const url = `http://127.0.0.1:${server.address().port}/`;
  const statuses = [];
  for (let turn = 0; turn < 4; turn++) statuses.push((await fetch(url)).status);
  server.close();
  assert.deepEqual(statuses, [200, 200, 429, 429]);
});

test("8 workers admit 5 of 1000 requests, also after they were killed", async () => {
  const cluster = fileURLToPath(new URL("cluster.mjs", import.meta.url));
  const primary = spawn(process.execPath, [cluster, newPath()], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const port = await new Promise((done) => primary.stdout.once("data", (text) => done(Number(text))));
    const get = async (path) => {
      try {
        const response = await fetch(`http://127.0.0.1:${port}${path}`, { headers: { connection: "close" } });
        return [response.status, await response.text()];
      } catch {
        return ["failed", ""];
      }
    };
    assert.deepEqual((await Promise.all([get("/"), get("/")])).map(([status]) => status), [200, 200]);
    const workers = new Set((await Promise.all(Array.from({ length: 200 }, () => get("/pid")))).map(([, pid]) => Number(pid)));
    assert.ok(workers.size > 1, "several workers answer");
    for (const worker of workers) process.kill(worker, "SIGKILL");
    const counts = {};
    for (let batch = 0; batch < 20; batch++) {
      for (const [status] of await Promise.all(Array.from({ length: 50 }, () => get("/")))) counts[status] = (counts[status] ?? 0) + 1;
    }
    assert.equal(counts[200], 3);
    assert.ok(counts[429] > 900, JSON.stringify(counts));
  } finally {
    primary.kill("SIGKILL");
  }
});
