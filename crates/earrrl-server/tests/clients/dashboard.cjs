// The dashboard in Chromium. Prints "good".
const assert = require('node:assert');
const { admin, adminToken, check, launch } = require('./browser.cjs');

const HOSTILE = '<img src=x onerror=alert(1)>\u202etxt\u0007\u001b[31m';
const LONG = 'x'.repeat(4096);
const CLIENTS = 27;
let sent = 0;

async function send(key) {
  await check('api', key);
  sent++;
}

async function load() {
  for (let client = 0; client < CLIENTS; client++) await send('client-' + client);
  for (let nth = 0; nth < 53; nth++) await send('alice');
  for (const key of [HOSTILE, LONG]) for (let nth = 0; nth < 30; nth++) await send(key);
}

// Collects all that must not happen on the page.
function watch(page) {
  const errors = [];
  page.on('pageerror', (error) => errors.push(String(error)));
  page.on('console', (line) => { if (line.type() === 'error') errors.push(line.text()); });
  page.on('request', (request) => { if (new URL(request.url()).origin !== admin) errors.push('request to ' + request.url()); });
  page.on('dialog', () => errors.push('a script in a name was executed'));
  return errors;
}

// Presses Tab until an element with this label has the focus.
async function tabTo(page, label) {
  for (let presses = 0; presses < 60; presses++) {
    if (await page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent) === label) return;
    await page.keyboard.press('Tab');
  }
  assert.fail(`${label} is not reached by the keyboard`);
}

async function aTokenIsNeeded(page, errors) {
  const first = await page.goto(admin + '/');
  const policy = first.headers()['content-security-policy'];
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|\*/);
  await page.waitForSelector('#login:not([hidden])');
  assert(await page.isHidden('#main'));
  await page.keyboard.type('wrong-token-0123456789');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.getElementById('refused').textContent === 'This token is not accepted.');
  assert(await page.isHidden('#main'));
  // Chromium reports the refused token, and nothing else.
  assert.match(errors.splice(0).join(), /^[^,]*status of 401[^,]*$/);
  await page.keyboard.type(adminToken);
  await page.keyboard.press('Enter');
  await page.waitForSelector('#main:not([hidden])');
  await page.waitForSelector('#clients tr');
}

async function namesAreHarmless(page) {
  const names = await page.locator('#clients td.client').allTextContents();
  assert(names.includes('alice'), String(names));
  assert(names.includes('<img src=x onerror=alert(1)>\\u{202e}txt\\u{7}\\u{1b}[31m'), String(names));
  assert(names.includes('x'.repeat(80) + '……'), String(names));
  assert.strictEqual(await page.locator('#clients img').count(), 0);
}

async function numbersMove(page) {
  const text = (id) => page.textContent('#' + id);
  const before = await text('denied-total');
  const busy = setInterval(() => { send('alice'); send('bob'); }, 20);
  await page.waitForFunction(() => Number(document.getElementById('allowed').textContent) > 5);
  await page.waitForFunction(() => Number(document.getElementById('denied').textContent) > 0);
  clearInterval(busy);
  assert.notStrictEqual(await text('denied-total'), before);
  // In the end every request that was sent is counted.
  const total = () => {
    const [allowed, denied] = ['allowed-total', 'denied-total'].map((id) => Number(document.getElementById(id).textContent.replaceAll(',', '')));
    return allowed + denied;
  };
  for (let tries = 0; (await page.evaluate(total)) !== sent; tries++) {
    assert(tries < 100, `${await page.evaluate(total)} of ${sent} requests are shown`);
    await page.waitForTimeout(100);
  }
  assert.strictEqual(await page.locator('#time polygon').count(), 2);
}

async function theLineMoves(page) {
  const rate = async () => Number(await page.getAttribute('#line', 'data-rate'));
  const [box, handle] = [await page.locator('#rates').boundingBox(), await page.locator('#line').boundingBox()];
  const inForce = await rate();
  await page.mouse.move(handle.x + handle.width / 2, handle.y + 20);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 20, { steps: 5 });
  await page.mouse.up();
  const dragged = await rate();
  assert.notStrictEqual(dragged, inForce);
  await tabTo(page, 'Another limit, in requests a second');
  await page.keyboard.press('ArrowLeft');
  const moved = await rate();
  assert(Math.abs(moved / dragged - 2 ** (-1 / 16)) < 1e-9, `${dragged} ${moved}`);
  const text = await page.textContent('#text');
  assert.strictEqual(text, `recent-average ${Number(moved.toPrecision(3))}/s half-life=10m`);
  await theServerAgrees(page, moved);
}

// Rates decay between the page's event and the request, so both are read again if they differ.
async function theServerAgrees(page, rate) {
  for (let tries = 0; ; tries++) {
    const would = await page.textContent('#would');
    const headers = { Authorization: 'Bearer ' + adminToken };
    const answer = await fetch(`${admin}/v1/rates?rule=api&above=${rate * 1.0001}`, { headers });
    const { clients, above } = await answer.json();
    const line = await page.getAttribute('#line', 'aria-valuetext');
    const expected = `A limit of ${line.split(' ')[0]}/s would limit ${above.clients} of ${clients} clients and ${Math.round(100 * above.share)} % of requests`;
    if (would === expected) return;
    assert(tries < 50, `${would}, but the server: ${expected}`);
    await page.waitForTimeout(200);
  }
}

async function aClientIsExempted(page) {
  const hostile = page.locator('#clients tr', { hasText: 'onerror' });
  await hostile.getByRole('button', { name: /^Exempt/ }).click();
  const expected = 'exempt = { "user" = ["<img src=x onerror=alert(1)>\\U0000202etxt\\U00000007\\U0000001b[31m"] }';
  assert.strictEqual(await page.textContent('#snippet'), expected);
  await page.keyboard.press('Escape');
  assert(await page.isHidden('#dialog'));
}

async function aClientIsReset(page) {
  await tabTo(page, 'Reset alice');
  await page.keyboard.press('Enter');
  await page.waitForSelector('dialog[open]');
  assert.match(await page.textContent('#question'), /^Reset alice under api\?/);
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => !document.getElementById('clients').textContent.includes('alice'));
}

async function anotherRuleIsShown(page) {
  await page.selectOption('#rule', 'search');
  await page.waitForFunction(() => document.getElementById('known').textContent === '0');
  assert.strictEqual(await page.textContent('#current'), 'recent-average 5/s half-life=1m');
  await page.selectOption('#rule', 'api');
  await page.waitForFunction(() => document.getElementById('known').textContent !== '0');
}

async function narrowPagesFit(page) {
  await page.emulateMedia({ colorScheme: 'dark' });
  assert.strictEqual(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), 'rgb(17, 21, 27)');
  await page.setViewportSize({ width: 400, height: 900 });
  // The page draws its figures anew some time after it was resized.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
}

async function main() {
  await load();
  const browser = await launch();
  const context = await browser.newContext({ viewport: { width: 1200, height: 850 } });
  const page = await context.newPage();
  const errors = watch(page);
  const steps = [aTokenIsNeeded, namesAreHarmless, numbersMove, theLineMoves, aClientIsExempted, aClientIsReset, anotherRuleIsShown, narrowPagesFit];
  for (const step of steps) await step(page, errors);
  assert.deepStrictEqual(await context.cookies(), []);
  assert.deepStrictEqual(await page.evaluate(() => [localStorage.length, sessionStorage.length]), [0, 0]);
  assert.deepStrictEqual(errors, []);
  await browser.close();
  console.log('good');
}

main().catch((error) => { console.error(error); process.exit(1); });
