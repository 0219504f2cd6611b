// ioredis: its ready check, a command of ours, an automatic pipeline. Prints "good".
const assert = require('node:assert');
const Redis = require('ioredis');

const [port, password] = process.argv.slice(2);

async function main() {
  const client = new Redis({ port: Number(port), password, enableAutoPipelining: true });
  assert.strictEqual(await client.ping(), 'PONG');
  const throttle = () => client.call('CL.THROTTLE', 'node', 1, 1, 60);
  assert.deepStrictEqual(await throttle(), [0, 2, 1, -1, 60]);
  const answers = await Promise.all(Array.from({ length: 100 }, throttle));
  assert.strictEqual(answers.filter(([limited]) => limited === 0).length, 1);
  const decision = await client.call('EARRRL.CHECK', 'api', 'node');
  assert.deepStrictEqual(decision.slice(0, 4), ['allowed', 1, 'action', 'allow']);
  await assert.rejects(client.call('EARRRL.CHECK', 'nothing', 'node'), /ERR/);
  await client.quit();
  console.log('good');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
