// A cluster of 8 workers that run Express with express-rate-limit; prints its port. The first argument is the store's directory.
import cluster from "node:cluster";
import process from "node:process";
import { EarrrlStore } from "earrrl";
import express from "express";
import { rateLimit } from "express-rate-limit";

if (cluster.isPrimary) {
  let listening = 0;
  const start = () => cluster.fork().once("listening", (address) => {
    if (++listening === 8) console.log(address.port);
  });
  // A killed worker is replaced.
  cluster.on("exit", start);
  for (let worker = 0; worker < 8; worker++) start();
} else {
  process.once("disconnect", () => process.exit());
  const app = express();
  app.get("/pid", (request, response) => response.send(String(process.pid)));
  app.use(rateLimit({ windowMs: 86_400_000, limit: 5, store: new EarrrlStore({ path: process.argv[2] }) }));
  app.get("/", (request, response) => response.send("hello"));
  app.listen(0, "127.0.0.1");
}
