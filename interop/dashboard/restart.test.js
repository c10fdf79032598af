// The server is killed and started again while the page is open: the page goes on, and no line is missing or there twice.

import assert from "node:assert/strict";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Server, allLines, openBrowser, openPage } from "./kit.js";

let server, browser;
before(async () => { [server, browser] = await Promise.all([Server.start(), openBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });

test("a page survives the end of its server", async () => {
  const count = 1500;
  const id = await server.call("steady", { count });
  const page = await openPage(browser, `${server.url}/#/task/${id}`);
  const list = await openPage(browser, `${server.url}/#/tasks`);
  for (const line of [100, 600]) {
    await page.waitForFunction((line) => document.querySelector("tw-terminal")?.length > line, line);
    await server.kill();
    await page.getByText("The server cannot be reached.").waitFor();
    await server.up();
    await page.getByText("The server cannot be reached.").waitFor({ state: "hidden" });
  }
  await page.getByText(`${count.toLocaleString("en")} lines`).waitFor({ timeout: 60_000 });
  assert.deepEqual((await allLines(page)).slice(0, count), Array.from({ length: count }, (_, i) => `number ${i + 1}`));
  await page.locator(".title").getByText("completed").waitFor();
  await list.locator("ul.tasks > li").getByText("completed").waitFor();
  assert.deepEqual([...page.problems, ...list.problems], []);
});

test("a page that is opened while the server is away waits for it", async () => {
  const page = await openPage(browser, `${server.url}/#/tools`);
  await page.locator("details.tool").first().waitFor();
  await server.kill();
  await page.getByRole("link", { name: /^Tasks/ }).click();
  await page.getByText("The server cannot be reached.").waitFor();
  await server.up();
  await page.locator("ul.tasks > li").first().waitFor();
});

test("a task that was forgotten while the server was away is said to be gone, and what it wrote stays", async () => {
  const id = await server.call("wait", { file: "lost" });
  const page = await openPage(browser, `${server.url}/#/task/${id}`);
  await page.locator("tw-terminal").getByText("waiting for lost").waitFor();
  await server.kill();
  await server.go("lost");
  await rm(join(server.dir, "data"), { recursive: true });
  await server.up();
  await page.getByText("There is no such task.").waitFor();
  await page.locator("tw-terminal").getByText("waiting for lost").waitFor();
  assert.deepEqual(page.problems, []);
});
