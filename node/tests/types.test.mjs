// The types of the package fit the services of usage.mts, strictly.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import test from "node:test";

test("TypeScript accepts the usage, and refuses what is wrong", () => {
  const at = (path) => fileURLToPath(new URL(path, import.meta.url));
  const options = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "false"];
  execFileSync(process.execPath, [at("node_modules/typescript/bin/tsc"), ...options, at("usage.mts")], { stdio: "inherit" });
});
