// One task: what it writes, asks and returns, and what can be done with it.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, afterEach, before, test } from "node:test";
import { Server, allLines, openBrowser, openPage, shownLines, until } from "./kit.js";

let server, browser, page;
before(async () => { [server, browser] = await Promise.all([Server.start(), openBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });
afterEach(async () => {
  assert.deepEqual(page.problems, []);
  assert.deepEqual(page.foreign, [], "no request goes anywhere else");
  await page.context().close();
});

const open = async (id, options) => { page = await openPage(browser, `${server.url}/#/task/${id}`, options); };

test("output is shown as a terminal would, with images, sounds, links and JSON", async () => {
  const id = await server.call("paint");
  await open(id);
  await page.locator("tw-terminal").getByText("the end").waitFor();
  const red = page.locator("tw-terminal .row span", { hasText: /^red$/ });
  assert.match(await red.getAttribute("class"), /fg-c1/);
  assert.match(await page.locator("tw-terminal .row span", { hasText: /^bold$/ }).getAttribute("class"), /bold/);
  assert.ok((await shownLines(page)).includes("100%"), "progress is one line");
  const link = page.locator("tw-terminal .row a");
  assert.deepEqual([await link.getAttribute("href"), await link.getAttribute("rel")], ["https://example.org/docs", "noopener noreferrer"]);
  await page.locator(".row", { hasText: '{"event"' }).getByRole("button", { name: "Show as a tree" }).click();
  const dialog = page.getByRole("dialog", { name: "A line as a tree" });
  await dialog.getByText("event:").waitFor();
  await page.keyboard.press("Escape");
  const image = page.locator(".media img");
  await until("the image is drawn", () => image.evaluate((element) => element.complete && element.naturalWidth === 10));
  await until("the sound can be played", () => page.locator(".media audio").evaluate((element) => element.duration > 0));
  await page.locator(".media").getByRole("link", { name: "report" }).waitFor();
});

test("output comes while it is written, can be paused, searched, copied and downloaded", async () => {
  const id = await server.call("steady", { count: 600 });
  await open(id, { permissions: ["clipboard-read", "clipboard-write"] });
  await page.locator("tw-terminal").getByText("number 60", { exact: true }).waitFor();
  const isAtEnd = () => page.locator("tw-terminal .view").evaluate((view) => view.scrollTop + view.clientHeight >= view.scrollHeight - 20);
  assert.ok(await isAtEnd(), "it follows");
  await page.locator("tw-terminal .view").hover();
  await page.mouse.wheel(0, -600);
  await page.getByRole("button", { name: "Follow", pressed: false }).waitFor();
  const top = await page.locator("tw-terminal .view").evaluate((view) => view.scrollTop);
  const count = (await allLines(page)).length;
  await page.waitForFunction((count) => document.querySelector("tw-terminal").length > count + 20, count);
  assert.equal(await page.locator("tw-terminal .view").evaluate((view) => view.scrollTop), top, "whoever reads is not moved");
  await page.getByRole("button", { name: "Pause" }).click();
  const held = (await allLines(page)).length;
  await page.getByRole("button", { name: "Resume (more)" }).waitFor();
  assert.equal((await allLines(page)).length, held);
  await page.getByRole("button", { name: /Resume/ }).click();
  await page.getByRole("button", { name: "Follow" }).click();
  await page.getByText("600 lines").waitFor();
  await until("it is at the end", isAtEnd);
  assert.deepEqual((await allLines(page)).slice(0, 600), Array.from({ length: 600 }, (_, i) => `number ${i + 1}`));
  await page.getByRole("searchbox", { name: "Search the output" }).fill("NUMBER 33");
  await page.getByText("11 lines").waitFor();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.press("Shift+Enter");
  await page.locator("tw-terminal .row.current mark").waitFor();
  assert.match(await page.locator("tw-terminal .row.current").textContent(), /^number 33\d$/);
  await page.locator("tw-terminal").getByRole("button", { name: "Copy" }).click();
  await until("it is copied", () => page.evaluate(async () => (await navigator.clipboard.readText()).startsWith("number 1\nnumber 2\n")));
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  assert.equal(download.suggestedFilename(), `${id}.txt`);
  assert.ok((await readFile(await download.path(), "utf8")).endsWith("number 599\nnumber 600\n"));
});

test("what is selected stays while more is written", async () => {
  const id = await server.call("steady", { count: 300 });
  await open(id);
  await page.locator("tw-terminal").getByText("number 5", { exact: true }).waitFor();
  await page.evaluate(() => {
    const terminal = document.querySelector("tw-terminal");
    terminal.follow(false);
    window.kept = [...terminal.querySelectorAll(".row")].find((row) => row.textContent === "number 2");
    getSelection().selectAllChildren(window.kept);
    window.before = terminal.length;
  });
  await page.waitForFunction(() => document.querySelector("tw-terminal").length > window.before + 10);
  assert.deepEqual(await page.evaluate(() => [getSelection().toString(), window.kept.isConnected]), ["number 2", true]);
  const texts = await shownLines(page);
  assert.deepEqual(texts, texts.map((_, i) => `number ${i + 1}`), "the rows are in their order");
});

test("a question is answered in a form of its schema", async () => {
  const id = await server.call("ask");
  await open(id);
  const form = page.locator("form.question");
  await form.getByRole("heading", { name: "Where shall this go?" }).waitFor();
  await form.getByRole("button", { name: "Answer" }).click();
  assert.equal((await server.api(`tasks/${id}`)).status, "input_required", "what is required must be chosen");
  await form.getByRole("combobox").selectOption({ label: "production" });
  await form.getByRole("button", { name: "Answer" }).click();
  await page.locator("tw-terminal").getByText("to production").waitFor();
  await page.getByText("completed").first().waitFor();
  await form.waitFor({ state: "hidden" });
  await page.locator(".timeline li", { hasText: "Question" }).getByText("answered").waitFor();
  const declined = await server.call("ask");
  await page.goto(`${server.url}/#/task/${declined}`);
  await page.getByRole("button", { name: "Decline" }).click();
  await server.ended(declined);
});

test("a task is cancelled, and run again with other arguments", async () => {
  const id = await server.call("wait", { file: "never", mood: "hasty" });
  await open(id);
  await page.locator("tw-terminal").getByText("waiting for never").waitFor();
  await page.locator(".panel", { hasText: "Arguments" }).getByText('"hasty"').waitFor();
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("button", { name: "Cancel the task" }).click();
  await page.locator(".title").getByText("cancelled").waitFor();
  assert.equal((await server.api(`tasks/${id}`)).status, "cancelled");
  await page.getByRole("button", { name: "Run again…" }).click();
  const dialog = page.getByRole("dialog");
  const file = dialog.getByRole("textbox", { name: "file" });
  assert.equal(await file.inputValue(), "never");
  await file.fill("again");
  await server.go("again");
  await dialog.getByRole("button", { name: "Run" }).click();
  await page.locator("tw-terminal").getByText("waiting for again").waitFor();
  await page.locator(".title").getByText("completed").waitFor();
  assert.ok(!page.url().endsWith(id));
  await page.locator(".panel", { hasText: "Result" }).getByText("gone").waitFor();
});

test("the timeline shows the time in which a task waited for its turn", async () => {
  const first = await server.call("turns", { file: "first" });
  const second = await server.call("turns", { file: "second" });
  await open(second);
  await page.locator(".title").getByText("queued").waitFor();
  await page.locator(".timeline li", { hasText: "Waiting" }).waitFor();
  await server.go("first");
  await server.ended(first);
  await page.locator(".title").getByText("working").waitFor();
  await server.go("second");
  await page.locator(".title").getByText("completed").waitFor();
  const names = await page.locator(".timeline .what").allTextContents();
  assert.deepEqual(names.map((name) => name.split(" ")[0]), ["Waiting", "Attempt"]);
  const bars = await page.locator(".timeline .fill").evaluateAll((fills) => fills.map((fill) => fill.getBoundingClientRect()));
  assert.ok(bars[0].right <= bars[1].left + 4, "one after the other");
});

test("a task that is not there is said not to be", async () => {
  await open("%zz");
  await page.getByText("There is no such task.").waitFor();
  await page.context().close();
  await open("0".repeat(32));
  await page.getByRole("alert").getByText("There is no such task.").waitFor();
});
