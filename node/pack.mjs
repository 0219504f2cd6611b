// Makes packages for npm in a folder, as tar files:
//
//   pack.mjs FOLDER host LIBRARY        one for this machine, with the native module in it
//   pack.mjs FOLDER PLATFORM LIBRARY    the native module of a platform
//   pack.mjs FOLDER main                the package itself, which installs the native module of the user's platform
import { execSync } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PLATFORMS = {
  "linux-x64-gnu": { os: ["linux"], cpu: ["x64"], libc: ["glibc"] },
  "linux-x64-musl": { os: ["linux"], cpu: ["x64"], libc: ["musl"] },
  "linux-arm64-gnu": { os: ["linux"], cpu: ["arm64"], libc: ["glibc"] },
  "linux-arm64-musl": { os: ["linux"], cpu: ["arm64"], libc: ["musl"] },
  "darwin-x64": { os: ["darwin"], cpu: ["x64"] },
  "darwin-arm64": { os: ["darwin"], cpu: ["arm64"] },
  "win32-x64-msvc": { os: ["win32"], cpu: ["x64"] },
};

const [folder, kind, library] = process.argv.slice(2);
const source = dirname(fileURLToPath(import.meta.url));
const own = JSON.parse(readFileSync(join(source, "package.json"), "utf8"));
const licences = ["LICENSE-APACHE", "LICENSE-MIT"];
const work = mkdtempSync(join(tmpdir(), "earrrl-pack-"));

// Lays the package out in the working folder, and returns its description.
function layOut() {
  for (const name of licences) copyFileSync(join(source, "..", name), join(work, name));
  if (Object.hasOwn(PLATFORMS, kind)) {
    copyFileSync(library, join(work, "earrrl.node"));
    const { version, license, repository, engines } = own;
    const description = `The native module of the package earrrl for ${kind}`;
    return { name: `earrrl-${kind}`, version, description, license, repository, engines, main: "earrrl.node", files: ["earrrl.node", ...licences], ...PLATFORMS[kind] };
  }
  cpSync(join(source, "lib"), join(work, "lib"), { recursive: true });
  copyFileSync(join(source, "README.md"), join(work, "README.md"));
  const described = { ...own, files: [...own.files, ...licences] };
  if (kind === "host") {
    copyFileSync(library, join(work, "lib", "earrrl.node"));
    return described;
  }
  if (kind === "main") return { ...described, optionalDependencies: Object.fromEntries(Object.keys(PLATFORMS).map((name) => [`earrrl-${name}`, own.version])) };
  throw new Error(`${kind}: expected host, main, ${Object.keys(PLATFORMS).join(", ")}`);
}

try {
  writeFileSync(join(work, "package.json"), JSON.stringify(layOut(), null, 2));
  mkdirSync(folder, { recursive: true });
  const packed = execSync(`npm pack --silent --pack-destination "${resolve(folder)}"`, { cwd: work, encoding: "utf8" });
  console.log(join(folder, packed.trim()));
} finally {
  rmSync(work, { recursive: true });
}
