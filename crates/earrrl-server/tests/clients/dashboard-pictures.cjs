// Takes the documentation's pictures of the dashboard, with some minutes of requests. Prints "good".
const { admin, adminToken, check, launch, pictures } = require('./browser.cjs');

// Returns a pseudo-random number below 1, the same sequence in each run.
let seed = 7;
function random() {
  seed = (seed * 48271) % 2147483647;
  return seed / 2147483647;
}

const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
const address = (nth) => (nth < 250 ? `192.0.2.${nth + 1}` : `198.51.100.${nth - 249}`);

// Gives each client the rate of a log-normal distribution, as if it had sent requests for some time.
async function fill() {
  for (let nth = 0; nth < 420; nth++) {
    const cost = Math.max(1, Math.round(25 * Math.exp(1.1 * normal())));
    await check('search', address(nth), Math.min(cost, 380));
  }
  for (const [key, times] of [['203.0.113.77', 3], ['203.0.113.9', 2]]) {
    for (let nth = 0; nth < times; nth++) await check('search', key, 300);
  }
}

async function traffic(seconds) {
  const until = Date.now() + seconds * 1000;
  for (let step = 0; Date.now() < until; step++) {
    const calls = [];
    for (let nth = 0; nth < 4 + 2 * Math.sin(step / 60) + random() * 3; nth++) calls.push(check('search', address(Math.floor(420 * random() ** 2))));
    if (step % 2 === 0) calls.push(check('search', '203.0.113.77'));
    if (step % 3 === 0 || step > 500) calls.push(check('search', '203.0.113.9'));
    await Promise.all(calls);
    await new Promise((wake) => setTimeout(wake, 100));
  }
}

async function main() {
  const browser = await launch();
  const page = await (await browser.newContext({ viewport: { width: 1120, height: 1000 } })).newPage();
  await fill();
  await page.goto(admin + '/');
  await page.fill('#token', adminToken);
  await page.keyboard.press('Enter');
  await page.waitForSelector('#main:not([hidden])');
  await page.selectOption('#rule', 'search');
  await traffic(Number(process.env.EARRRL_SCREENSHOTS) || 100);
  await page.locator('#line').focus();
  for (let presses = 0; presses < 28; presses++) await page.keyboard.press('ArrowLeft');
  await page.locator('#line').blur();
  await traffic(2);
  await page.screenshot({ path: pictures + '/dashboard.png' });
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.screenshot({ path: pictures + '/dashboard-dark.png' });
  await page.setViewportSize({ width: 400, height: 1300 });
  await page.waitForTimeout(1500);
  await page.screenshot({ path: pictures + '/dashboard-400.png' });
  await browser.close();
  console.log('good');
}

main().catch((error) => { console.error(error); process.exit(1); });
