// The packages for npm, each installed into an empty project without a network.
import assert from "node:assert/strict";
import { execFileSync, execSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

const { EARRRL_PACKAGE: host, EARRRL_ROOT: root } = process.env;
const here = process.cwd();
const isMusl = process.platform === "linux" && !process.report.getReport().header.glibcVersionRuntime;
const suffix = { linux: isMusl ? "-musl" : "-gnu", win32: "-msvc" }[process.platform] ?? "";
const platform = `${process.platform}-${process.arch}${suffix}`;
const CHECK = 'const { allowed } = new Limiter("gcra 1/d burst=1").check("alice"); console.log(allowed, typeof rateLimit);';
const IMPORTS = `import { Limiter } from "earrrl"; import { rateLimit } from "earrrl/express"; import "earrrl/fastify"; import "earrrl/hono"; import "earrrl/koa"; ${CHECK}`;
const REQUIRES = `const { Limiter } = require("earrrl"); const { rateLimit } = require("earrrl/express"); require("earrrl/fastify"); require("earrrl/hono"); require("earrrl/koa"); ${CHECK}`;

// Returns a new project with packages, beside those of the registry that cannot be reached.
function project(...packages) {
  const folder = mkdtempSync(join(tmpdir(), "earrrl-project-"));
  writeFileSync(join(folder, "package.json"), "{}");
  writeFileSync(join(folder, "main.mjs"), IMPORTS);
  writeFileSync(join(folder, "main.cjs"), REQUIRES);
  execSync(`npm install --offline --no-audit --no-fund --loglevel error ${packages.map((path) => `"${path}"`).join(" ")}`, { cwd: folder });
  return folder;
}

const run = (folder, file) => execFileSync(process.execPath, [file], { cwd: folder, encoding: "utf8", stdio: "pipe" });

function pack(kind) {
  const library = join(here, "node_modules", "earrrl", "lib", "earrrl.node");
  const packed = mkdtempSync(join(tmpdir(), "earrrl-packed-"));
  return execFileSync(process.execPath, [join(root, "node", "pack.mjs"), packed, kind, library], { encoding: "utf8", stdio: "pipe" }).trim();
}

test("the package for one machine is imported, required and compiled against", () => {
  const folder = project(host);
  for (const file of ["main.mjs", "main.cjs"]) assert.equal(run(folder, file), "true function\n");
  for (const name of ["LICENSE-APACHE", "LICENSE-MIT", "README.md"]) assert.ok(existsSync(join(folder, "node_modules", "earrrl", name)), name);
  mkdirSync(join(folder, "node_modules", "@types"));
  for (const name of ["@types/node", "undici-types"]) cpSync(join(here, "node_modules", name), join(folder, "node_modules", name), { recursive: true });
  const use = 'const limiter: Limiter = new Limiter("gcra 1/s burst=9");\nexport const allowed: boolean = limiter.check("a").allowed;\n';
  writeFileSync(join(folder, "use.mts"), `import { Limiter } from "earrrl";\n${use}`);
  writeFileSync(join(folder, "use.cts"), `import earrrl = require("earrrl");\ntype Limiter = earrrl.Limiter;\nconst { Limiter } = earrrl;\n${use}`);
  const options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "use.mts", "use.cts"];
  execFileSync(process.execPath, [join(here, "node_modules", "typescript", "bin", "tsc"), ...options], { cwd: folder, stdio: "inherit" });
  rmSync(folder, { recursive: true });
});

test("the published package finds the module of its platform, and says so if there is none", () => {
  const main = pack("main");
  const folder = project(main, pack(platform));
  for (const file of ["main.mjs", "main.cjs"]) assert.equal(run(folder, file), "true function\n");
  rmSync(join(folder, "node_modules", `earrrl-${platform}`), { recursive: true });
  const missing = new RegExp(`earrrl has no native module for ${process.platform} on ${process.arch}: none of the optional packages earrrl-${process.platform}`);
  assert.throws(() => run(folder, "main.cjs"), missing);
  // A module that does not fit.
  mkdirSync(join(folder, "node_modules", `earrrl-${platform}`));
  writeFileSync(join(folder, "node_modules", `earrrl-${platform}`, "index.node"), "no module");
  assert.throws(() => run(folder, "main.cjs"), /earrrl has no native module .*: /);
  rmSync(folder, { recursive: true });
});

test("a package of an unknown platform is refused", () => {
  assert.throws(() => pack("plan9-x64"), /plan9-x64: expected host, main, linux-x64-gnu/);
});
