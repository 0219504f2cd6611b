// Runs the tests of jest.config.json, and fails if one fails that should pass.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

// The tests that do not apply, by the reason.
const APART = {
  "the timers and maps of MemoryStore are its own": [
    "clears the timer when `shutdown` is called",
    "should automatically clear previously set intervals",
    "should move clients from previous to current",
    "can run in electron where setInterval does not return a Timeout object with an unset function",
  ],
  "a client without hits is not stored": ["does not decrement the key below 0 when `decrement` is called"],
};

const jest = spawnSync(process.execPath, ["node_modules/jest/bin/jest.js", "--config", "jest.config.json", "--json", "--outputFile", "results.json"], { encoding: "utf8" });
const { testResults } = JSON.parse(readFileSync("results.json", "utf8"));
const results = testResults.flatMap(({ assertionResults }) => assertionResults);
const titles = (status) => results.filter((result) => result.status === status).map(({ title }) => title);
const apart = new Set(Object.values(APART).flat());
const failed = titles("failed").filter((title) => !apart.has(title));
const broken = testResults.filter(({ assertionResults }) => assertionResults.length === 0).map(({ name }) => name);

if (failed.length > 0 || broken.length > 0) console.log(jest.stderr);
console.log(`${titles("passed").length} of ${results.length} pass`);
for (const [reason, tests] of Object.entries(APART)) console.log(`${tests.length} do not apply: ${reason}`);
for (const name of [...failed, ...broken]) console.log(`failed: ${name}`);
const unknown = [...apart].filter((title) => !results.some((result) => result.title === title));
for (const title of unknown) console.log(`no such test: ${title}`);
process.exitCode = failed.length + broken.length + unknown.length > 0 || results.length === 0 ? 1 : 0;
