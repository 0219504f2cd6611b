// A cluster of 8 workers that serve an application of services.mjs: `cluster.mjs SERVICE PORT DIRECTORY`. Prints a line for
// each worker that listens. A worker that was killed is replaced.
import cluster from "node:cluster";
import process from "node:process";
import { services } from "./services.mjs";

const [service, port, directory] = process.argv.slice(2);
if (cluster.isPrimary) {
  cluster.on("exit", () => cluster.fork());
  cluster.on("listening", () => console.log("listening"));
  for (let worker = 0; worker < 8; worker++) cluster.fork();
} else {
  process.once("disconnect", () => process.exit());
  await services[service](Number(port), directory);
}
