// Every block of JavaScript in docs/node.md runs, and its service, if it has one, denies.
import assert from "node:assert/strict";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";

const page = readFileSync(join(process.env.EARRRL_ROOT, "docs", "node.md"), "utf8");
const blocks = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, block]) => block);
assert.ok(blocks.length >= 2);

for (const [place, block] of blocks.entries()) {
  test(`block ${place}`, async () => {
    // The block gets paths of its own, directly in the same directory.
    const prefix = `earrrl-docs-${process.pid}-${place}-`;
    const file = join(process.cwd(), `block-${place}.mjs`);
    const isService = block.includes("const app");
    const exported = isService ? "export { app };\n" : "";
    writeFileSync(file, `${block.replaceAll("/dev/shm/", `/dev/shm/${prefix}`)}\n${exported}`);
    const { app } = await import(file);
    if (!isService) return;
    const server = app.listen(0, "127.0.0.1");
    await new Promise((done) => server.once("listening", done));
    const url = `http://127.0.0.1:${server.address().port}/`;
    const statuses = [];
    for (let turn = 0; turn < 40; turn++) statuses.push((await fetch(url)).status);
    server.close();
    const folders = readdirSync("/dev/shm").filter((name) => name.startsWith(prefix));
    folders.forEach((name) => rmSync(join("/dev/shm", name), { recursive: true }));
    assert.equal(statuses[0], 200);
    assert.ok(statuses.includes(429) && !statuses.includes(500), String(statuses));
    assert.ok(folders.length > 0, "the block keeps its limits in files");
  });
}
