// Loads the native module: the one of this folder, in a package for one machine, or that of the platform's own package.
"use strict";
const { arch, platform } = process;

// Those of Linux differ by the C library; only the one that fits is installed, or can be loaded.
const SUFFIXES = { linux: ["-gnu", "-musl"], win32: ["-msvc"] };

function load() {
  const packages = (SUFFIXES[platform] ?? [""]).map((suffix) => `earrrl-${platform}-${arch}${suffix}`);
  const failures = [];
  for (const name of ["./earrrl.node", ...packages]) {
    try {
      return require(name);
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") failures.push(error.message);
    }
  }
  const reason = failures.join("; ") || `none of the optional packages ${packages.join(", ")} is installed`;
  throw new Error(`earrrl has no native module for ${platform} on ${arch}: ${reason}`);
}

module.exports = load();
