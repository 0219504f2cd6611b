// Starts Chromium for the tests of the dashboard: that of the environment variable CHROMIUM, the one that
// scripts/setup installs, or that of the machine. Also sends requests to the server.
const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { chromium } = require('playwright-core');

const [admin, api, adminToken, checkToken, pictures] = process.argv.slice(2);

async function launch() {
  const installed = path.join(process.env.NODE_PATH, '..', 'bin', 'chromium');
  const known = [process.env.CHROMIUM, installed, '/usr/bin/chromium'];
  const executablePath = known.find((file) => file && fs.existsSync(file));
  assert(executablePath, 'Chromium is not installed: run scripts/setup, or set CHROMIUM to its path');
  // Chromium's sandbox needs privileges that containers lack; the only page is our own.
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
}

// Charges a client under a rule; returns true if it was allowed.
async function check(rule, key, cost = 1) {
  const headers = { 'Content-Type': 'application/json', Authorization: 'Bearer ' + checkToken };
  const answer = await fetch(api + '/v1/check', { method: 'POST', headers, body: JSON.stringify({ rule, key, cost }) });
  await answer.text();
  assert(answer.status === 200 || answer.status === 429, `status ${answer.status}`);
  return answer.status === 200;
}

module.exports = { admin, adminToken, check, launch, pictures };
