// Express with its defaults: node express.cjs PORT
const app = require("express")();
app.get("/v1/login", (_, answer) => answer.send("REACHED"));
app.listen(Number(process.argv[2]), "127.0.0.1");
