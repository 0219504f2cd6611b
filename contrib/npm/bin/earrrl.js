#!/usr/bin/env node
// Runs the program for this processor, and passes signals on to it.
const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const { join } = require("node:path");

const child = spawn(join(__dirname, `earrrl-${process.arch}`), process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`earrrl: ${error.message}; this package has programs for Linux on x64 and arm64`);
  process.exit(1);
});
// A terminal sends SIGINT to both processes, so it must only not end this one.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
