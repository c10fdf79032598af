// A task of 100,000 lines, measured.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server, openBrowser, openPage } from "./kit.js";

const LINES = 100_000;
/** Seconds in which the page is busy with all lines, those of layout among them, and bytes of memory: some times what a slow machine needs. */
const BUSY_MAX = 4;
const LAYOUT_MAX = 1;
const HEAP_MAX = 80 * 1024 * 1024;
/** The longest time in which the page does nothing else, in milliseconds. */
const BLOCKED_MAX = 500;

let server, browser;
before(async () => { [server, browser] = await Promise.all([Server.start(), openBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });

test("100,000 lines are shown without a stutter", async (t) => {
  const id = await server.call("lines", { count: LINES });
  await server.ended(id);
  const page = await openPage(browser, server.url);
  await page.evaluate(() => {
    window.longest = 0;
    new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration); }).observe({ type: "longtask" });
  });
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable");
  const read = async () => Object.fromEntries((await devtools.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  const before = await read();
  await page.evaluate((id) => { location.hash = `#/task/${id}`; }, id);
  await page.getByText("100,000 lines").waitFor({ timeout: 60_000 });
  await page.locator("tw-terminal").getByText(`line ${LINES} of the output`).waitFor();
  const loaded = await read();
  const rows = await page.locator("tw-terminal .row").count();
  assert.ok(rows < 150, `${rows} lines are elements`);
  // Through all of it, a frame each time.
  const frames = await page.evaluate(async () => {
    const view = document.querySelector("tw-terminal .view");
    const times = [];
    let last = performance.now();
    for (let i = 0; i < 60; i += 1) {
      view.scrollTop = (view.scrollHeight / 60) * i;
      await new Promise(requestAnimationFrame);
      times.push(performance.now() - last);
      last = performance.now();
    }
    return times.sort((a, b) => a - b);
  });
  await page.getByRole("searchbox", { name: "Search the output" }).fill("line 99999 of");
  await page.getByText("1 line", { exact: true }).waitFor();
  await page.keyboard.press("Enter");
  await page.locator("tw-terminal .row.current").waitFor();
  await devtools.send("HeapProfiler.collectGarbage");
  const after = await read();
  const longest = await page.evaluate(() => window.longest);
  // Work in promises counts as no script for the browser, but as a task.
  const busy = loaded.TaskDuration - before.TaskDuration;
  const layout = loaded.LayoutDuration + loaded.RecalcStyleDuration - before.LayoutDuration - before.RecalcStyleDuration;
  const heap = after.JSHeapUsedSize;
  t.diagnostic(`busy for ${busy.toFixed(2)} s, layout ${layout.toFixed(2)} s, heap ${(heap / 1024 / 1024).toFixed(1)} MiB`);
  t.diagnostic(`longest task ${longest.toFixed(0)} ms, median frame while scrolling ${frames[30].toFixed(1)} ms, ${rows} rows`);
  assert.ok(busy < BUSY_MAX, `the page was busy for ${busy} s`);
  assert.ok(layout < LAYOUT_MAX, `layout took ${layout} s`);
  assert.ok(heap < HEAP_MAX, `the heap has ${heap} bytes`);
  assert.ok(longest < BLOCKED_MAX, `the page was blocked for ${longest} ms`);
  assert.deepEqual(page.problems, []);
});

test("of more lines than are kept, a search still finds the right ones, and who reads stays there", async () => {
  const page = await openPage(browser, server.url);
  await page.evaluate(async () => {
    const [{ Terminal }, { LINES_MAX }] = await Promise.all(["terminal", "ansi"].map((name) => import(`/dashboard/${name}.js`)));
    const terminal = new Terminal();
    window.terminal = terminal;
    document.body.append(terminal);
    window.writeOn = (from, to) => terminal.write(Array.from({ length: to - from }, (_, i) => `row ${from + i};\n`).join(""));
    window.lines = LINES_MAX;
    window.writeOn(0, LINES_MAX - 1);
    terminal.find("99;");
  });
  await page.waitForFunction(() => window.terminal.hits.length === window.lines / 100 - 1 && window.terminal.searched >= window.lines - 2);
  await page.evaluate(() => { window.terminal.hit = 3000; window.terminal.follow(false); window.terminal.showLine(window.terminal.hits[3000]); });
  const current = page.locator("tw-terminal .row.current");
  assert.equal(await current.textContent(), "row 300099;");
  await page.evaluate(() => window.writeOn(window.lines - 1, window.lines + 1000));
  await page.waitForFunction(() => window.terminal.screen.dropped > 0 && window.terminal.searched >= window.terminal.length - 1);
  await page.waitForFunction(() => document.querySelector("tw-terminal .row.current")?.textContent === "row 300099;");
  const wrong = await page.evaluate(() => window.terminal.hits.filter((line) => !window.terminal.screen.lines[line].text.endsWith("99;")).length);
  assert.equal(wrong, 0);
  assert.deepEqual(page.problems, []);
});
