// The types of the package fit the services of usage*.mts, strictly.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import test from "node:test";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const options = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", "--types", "node"];
// The types of Koa do not fit those of a package that they name.
const programs = { "usage.mts": "false", "usage-fastify-store.mts": "false", "usage-koa.mts": "true" };

for (const [program, skipLibCheck] of Object.entries(programs)) {
  test(`TypeScript accepts ${program}, and refuses what is wrong in it`, () => {
    execFileSync(process.execPath, [at("node_modules/typescript/bin/tsc"), ...options, "--skipLibCheck", skipLibCheck, at(program)], { stdio: "inherit" });
  });
}
