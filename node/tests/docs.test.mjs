// Every block of JavaScript in docs/node.md runs, and those of docs/moving.md that use the package. Its service, if it
// has one, denies, and the files that it makes are removed.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { serve } from "@hono/node-server";

function blocksOf(name) {
  const page = readFileSync(join(process.env.EARRRL_ROOT, "docs", name), "utf8");
  return [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, block]) => block);
}

const blocks = [...blocksOf("node.md"), ...blocksOf("moving.md").filter((block) => block.includes('from "earrrl'))];
assert.ok(blocks.length >= 8);

async function listen(app) {
  if (app.register) {
    await app.listen({ port: 0, host: "127.0.0.1" });
    return app.server;
  }
  const server = app.fetch ? serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }) : app.listen(0, "127.0.0.1");
  await once(server, "listening");
  return server;
}

async function statusesOf(app) {
  const server = await listen(app);
  const statuses = [];
  try {
    for (let turn = 0; turn < 40; turn++) {
      const response = await fetch(`http://127.0.0.1:${server.address().port}/`, { headers: { connection: "close" } });
      await response.text();
      statuses.push(response.status);
    }
  } finally {
    server.close();
  }
  return statuses;
}

for (const [place, block] of blocks.entries()) {
  test(`block ${place}`, async () => {
    // The block gets paths of its own, directly in the same directory, and a slow machine earns it no further requests.
    const prefix = `earrrl-docs-${process.pid}-${place}-`;
    const made = () => readdirSync("/dev/shm").filter((name) => name.startsWith(prefix));
    const file = join(process.cwd(), `block-${place}.mjs`);
    const isService = block.includes("const app");
    const program = block.replaceAll("/dev/shm/", `/dev/shm/${prefix}`).replaceAll("gcra 5/s", "gcra 5/h");
    writeFileSync(file, `${program}\n${isService ? "export { app };\n" : ""}`);
    try {
      const { app } = await import(file);
      const statuses = isService ? await statusesOf(app) : [200, 429];
      assert.equal(statuses[0], 200);
      assert.ok(statuses.includes(429) && !statuses.includes(500), String(statuses));
      assert.equal(made().length > 0, block.includes("/dev/shm/"), "the block keeps its limits in files");
    } finally {
      made().forEach((name) => rmSync(join("/dev/shm", name), { recursive: true }));
    }
    assert.deepEqual(made(), []);
  });
}
