// Watches the dashboard. For each line on standard input, prints the page's memory for objects in bytes, after a
// collection of garbage, and the number of requests that it shows.
const readline = require('node:readline');
const { admin, adminToken, launch } = require('./browser.cjs');

async function main() {
  const browser = await launch();
  const page = await (await browser.newContext()).newPage();
  page.on('pageerror', (error) => { console.error(error); process.exit(1); });
  await page.goto(admin + '/');
  await page.fill('#token', adminToken);
  await page.keyboard.press('Enter');
  await page.waitForSelector('#clients tr');
  const session = await page.context().newCDPSession(page);
  await session.send('Performance.enable');
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    await session.send('HeapProfiler.collectGarbage');
    const { metrics } = await session.send('Performance.getMetrics');
    const used = metrics.find((metric) => metric.name === 'JSHeapUsedSize').value;
    const shown = await page.evaluate(() => ['allowed-total', 'denied-total'].reduce((sum, id) => sum + Number(document.getElementById(id).textContent.replaceAll(',', '')), 0));
    console.log(`${used} ${shown}`);
  }
  await browser.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
