// The list: live, filtered, counted, cancelled, and what waits for an answer.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { Server, openBrowser, openPage, until } from "./kit.js";

let server, browser, page;
before(async () => { [server, browser] = await Promise.all([Server.start(), openBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });
afterEach(async () => {
  assert.deepEqual(page.problems, []);
  assert.deepEqual(page.foreign, [], "no request goes anywhere else");
  await page.context().close();
});

const rows = () => page.locator("ul.tasks > li");
const row = (id) => rows().filter({ has: page.locator(`a[href="#/task/${id}"]`) });

test("tasks come, change and end without a reload, and what waits for an answer stands out", async () => {
  page = await openPage(browser, server.url);
  await page.getByText("No tasks yet.").waitFor();
  const slow = await server.call("wait", { file: "live" });
  await row(slow).getByText("working").waitFor();
  const asks = await server.call("ask");
  await row(asks).getByText("needs an answer").waitFor();
  await page.locator("nav").getByText("1 waiting").waitFor();
  const colours = await Promise.all([slow, asks].map((id) => row(id).evaluate((element) => getComputedStyle(element).backgroundColor)));
  assert.notEqual(colours[0], colours[1]);
  assert.match(await page.locator(".counts").textContent(), /2 tasks1 working1 needs an answer/);
  await server.go("live");
  await row(slow).getByText("completed").waitFor();
  await server.api(`tasks/${asks}/cancel`, "POST");
  await row(asks).getByText("cancelled", { exact: true }).waitFor();
  await page.locator("nav").getByText("waiting").waitFor({ state: "hidden" });
  assert.equal(await row(slow).locator("input").isDisabled(), true, "what has ended cannot be cancelled");
});

test("the filter is in the address, and a reload keeps it", async () => {
  const one = await server.call("wait", { file: "one" });
  page = await openPage(browser, server.url);
  await row(one).waitFor();
  await page.getByLabel("State").selectOption("open");
  await page.getByLabel("Tool").fill("wait");
  await until("only that is shown", async () => (await rows().count()) === 1);
  assert.match(page.url(), /#\/tasks\?status=open&tool=wait$/);
  await page.getByLabel("Text in the tasks below").fill("nothing like this");
  await page.getByText("No task fits the filter.").waitFor();
  await page.getByLabel("Text in the tasks below").fill(one.slice(-6));
  await row(one).waitFor();
  await page.reload();
  await row(one).waitFor();
  assert.equal(await page.getByLabel("Tool").inputValue(), "wait");
  assert.equal(await page.getByLabel("Text in the tasks below").inputValue(), one.slice(-6));
  assert.equal(await rows().count(), 1);
  await server.go("one");
  await page.getByText("No task fits the filter.").waitFor();
});

test("many are cancelled at once, with progress", async () => {
  const ids = [];
  for (let i = 0; i < 12; i += 1) ids.push(await server.call("wait", { file: `bulk${i}` }));
  page = await openPage(browser, `${server.url}/#/tasks?status=open&tool=wait`);
  await until("all are there", async () => (await rows().count()) === 12);
  await row(ids[3]).getByRole("checkbox").check();
  await page.getByRole("button", { name: "Cancel 1" }).waitFor();
  await row(ids[3]).getByRole("checkbox").uncheck();
  await page.getByLabel("Choose all below that have not ended").check();
  await page.getByRole("button", { name: "Cancel 12" }).click();
  await page.getByRole("button", { name: "Keep" }).click();
  assert.equal((await server.api(`tasks/${ids[0]}`)).status, "working", "nothing happens without a yes");
  await page.getByRole("button", { name: "Cancel 12" }).click();
  await page.getByRole("button", { name: "Cancel these 12 tasks" }).click();
  await page.locator(".bulk").getByText("12 cancelled", { exact: true }).waitFor();
  for (const id of ids) assert.equal((await server.api(`tasks/${id}`)).status, "cancelled");
  await page.getByText("No task fits the filter.").waitFor();
});

test("keys go through the list", async () => {
  const ids = [await server.call("wait", { file: "key" }), await server.call("wait", { file: "key" })];
  page = await openPage(browser, `${server.url}/#/tasks?status=open`);
  await row(ids[0]).waitFor();
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-label")), "Text in the tasks below");
  await row(ids[1]).getByRole("link").focus();
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("href")), `#/task/${ids[0]}`);
  await page.keyboard.press("x");
  await page.getByRole("button", { name: "Cancel 1" }).waitFor();
  await page.keyboard.press("k");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "wait" }).waitFor();
  assert.ok(page.url().endsWith(ids[1]));
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "hidden" });
  await server.go("key");
});

test("a long list is read page by page, and stays live", async () => {
  await server.go("many");
  for (let i = 0; i < 110; i += 1) await server.call("wait", { file: "many" });
  page = await openPage(browser, `${server.url}/#/tasks?tool=wait&status=completed`);
  await until("a page is there", async () => (await rows().count()) === 100);
  await page.getByRole("button", { name: "Show more" }).click();
  await until("the rest is there", async () => (await rows().count()) > 110);
  const before = await rows().count();
  const another = await server.call("wait", { file: "many" });
  await row(another).waitFor();
  assert.equal(await rows().count(), before + 1);
});
