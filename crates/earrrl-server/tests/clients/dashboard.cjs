// The dashboard in Chromium: live numbers, the line and /v1/rates, a reset, a wrong token, 400 px, dark, the
// keyboard alone, no error and no request to another host. Prints "good".
const assert = require('node:assert');
const fs = require('node:fs');
const { chromium } = require('playwright-core');

const [admin, api, adminToken, checkToken, pictures] = process.argv.slice(2);
const HOSTILE = '<img src=x onerror=alert(1)>\u202etxt\u0007';

async function check(key) {
  const headers = { 'Content-Type': 'application/json', Authorization: 'Bearer ' + checkToken };
  const answer = await fetch(api + '/v1/check', { method: 'POST', headers, body: JSON.stringify({ rule: 'api', key }) });
  await answer.text();
}

async function load() {
  for (let client = 0; client < 27; client++) await check('client-' + client);
  for (let nth = 0; nth < 53; nth++) await check('alice');
  for (let nth = 0; nth < 30; nth++) await check(HOSTILE);
}

async function main() {
  const installed = ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find((file) => fs.existsSync(file));
  const executablePath = process.env.CHROMIUM ?? installed;
  assert(executablePath, 'Chromium is not installed: apt-get install chromium, or set CHROMIUM');
  await load();
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
  const context = await browser.newContext({ viewport: { width: 1200, height: 850 } });
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error)));
  page.on('console', (line) => { if (line.type() === 'error' && !/401|403/.test(line.text())) errors.push(line.text()); });
  page.on('request', (request) => { if (!request.url().startsWith(admin)) errors.push('request to ' + request.url()); });
  page.on('dialog', () => errors.push('a script of a name ran'));

  const first = await page.goto(admin + '/');
  assert.match(first.headers()['content-security-policy'], /default-src 'none'/);
  // A wrong token is refused; the keyboard alone is enough.
  await page.waitForSelector('#login:not([hidden])');
  await page.keyboard.type('wrong-token-0123456789');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.getElementById('refused').textContent !== '');
  await page.keyboard.type(adminToken);
  await page.keyboard.press('Enter');
  await page.waitForSelector('#main:not([hidden])');
  await page.waitForSelector('#clients tr');
  assert.match(await page.textContent('#clients'), /alice/);
  assert.match(await page.textContent('#clients'), /<img src=x onerror=alert\(1\)>\\u\{202e\}txt\\u\{7\}/);

  // Live numbers move.
  const busy = setInterval(() => { check('alice'); check('bob'); }, 20);
  await page.waitForFunction(() => Number(document.getElementById('allowed').textContent) > 5);
  await page.waitForFunction(() => Number(document.getElementById('denied').textContent) > 0);
  clearInterval(busy);

  // The line by mouse and by keyboard: the numbers are those of /v1/rates.
  const box = await page.locator('#rates').boundingBox();
  const handle = await page.locator('#line').boundingBox();
  await page.mouse.move(handle.x + handle.width / 2, handle.y + 20);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 20, { steps: 5 });
  await page.mouse.up();
  await page.locator('#line').focus();
  const before = await page.getAttribute('#line', 'data-rate');
  await page.keyboard.press('ArrowLeft');
  assert.notStrictEqual(await page.getAttribute('#line', 'data-rate'), before);
  const seen = await page.evaluate(() => ({ line: above(chosen), rates, rate: rateOf(chosen) }));
  const text = await page.textContent('#would');
  assert.match(text, /^would limit \d+ of \d+ clients and \d+ % of requests$/);
  assert.match(await page.textContent('#text'), /^recent-average [\d.e-]+\/s half-life=/);
  // Rates decay between two requests, so the server is asked with the buckets that the page has.
  const sum = seen.rates.buckets.filter((bucket) => bucket.from >= seen.rate * 0.999);
  assert.strictEqual(seen.line.clients, sum.reduce((all, bucket) => all + bucket.clients, 0));
  const headers = { Authorization: 'Bearer ' + adminToken };
  for (let tries = 0; ; tries++) {
    const shown = await page.evaluate(() => ({ clients: above(chosen).clients, share: above(chosen).share, rate: rateOf(chosen), at: rates.at }));
    const answer = await fetch(`${admin}/v1/rates?rule=api&above=${shown.rate * 1.0001}`, { headers });
    const { above } = await answer.json();
    if (above.clients === shown.clients && Math.abs(above.share - shown.share) < 0.02) break;
    assert(tries < 50, JSON.stringify([above, shown]));
    await new Promise((wake) => setTimeout(wake, 200));
  }

  await page.screenshot({ path: pictures + '/dashboard.png' });
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.screenshot({ path: pictures + '/dashboard-dark.png' });
  await page.setViewportSize({ width: 400, height: 900 });
  await page.waitForTimeout(300);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(overflow <= 0, `the page is ${overflow} px too wide`);
  await page.screenshot({ path: pictures + '/dashboard-400.png' });

  // A client is reset, by keyboard.
  await page.getByRole('button', { name: 'Reset alice' }).focus();
  await page.keyboard.press('Enter');
  await page.waitForSelector('dialog[open]');
  await page.locator('#yes').focus();
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => !document.getElementById('clients').textContent.includes('alice'));

  assert.deepStrictEqual(await context.cookies(), []);
  assert.deepStrictEqual(await page.evaluate(() => [localStorage.length, sessionStorage.length]), [0, 0]);
  assert.deepStrictEqual(errors, []);
  await browser.close();
  console.log('good');
}

main().catch((error) => { console.error(error); process.exit(1); });
