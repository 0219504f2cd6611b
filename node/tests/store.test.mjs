// The store for express-rate-limit.
import assert from "node:assert/strict";
import test from "node:test";
import { EarrrlStore } from "earrrl";
import express from "express";
import { rateLimit } from "express-rate-limit";
import { newPath } from "./helpers.mjs";

const DAY = 86_400_000;

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
    for (const key of ["alice", "bob"]) await store.increment(key);
    store.resetAll();
    for (const key of ["alice", "bob"]) assert.equal(await store.get(key), undefined);
    assert.equal(await other.get("a:alice"), undefined);
  });
}

test("a store counts in windows of a minute until it is initialised", async () => {
  const store = new EarrrlStore();
  const { totalHits, resetTime } = await store.increment("alice");
  assert.equal(totalHits, 1);
  assert.ok(resetTime <= new Date(Date.now() + 60_000));
  assert.equal(store.windowMs, 60_000);
});

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
