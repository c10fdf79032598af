// Tools are run by forms that are made from their schemas; nodes and health are drawn.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { Server, TOOLS, openBrowser, openPage, until } from "./kit.js";

const FORM = `
[[tool]]
name = "form"
description = "Has all kinds of fields"
command = ["sh", "-c", 'echo "$1 $2 $3 $4 $5 $6"', "form", "{text}", "{number}", "{choice}", "{flag}", "{list}", "{any}"]
input.text = { type = "string", minLength = 2, description = "a text" }
input.number = { type = "integer", minimum = 1, maximum = 9, default = 3 }
input.choice = { type = "string", enum = ["left", "right"] }
input.flag = { type = "boolean", default = true }
input.list = { type = "array", items = { type = "string", enum = ["a", "b", "c"] }, optional = true }
input.any = { type = "array", items = { type = "integer" }, optional = true }
`;

let server, browser, page;
before(async () => { [server, browser] = await Promise.all([Server.start(TOOLS + FORM), openBrowser()]); });
after(async () => { await browser?.close(); await server?.stop(); });
afterEach(async () => {
  assert.deepEqual(page.problems, []);
  assert.deepEqual(page.foreign, [], "no request goes anywhere else");
  await page.context().close();
});

async function openTool(name) {
  page = await openPage(browser, `${server.url}/#/tools`);
  const tool = page.locator("details.tool").filter({ has: page.getByRole("heading", { name, exact: true }) });
  await tool.locator("summary").first().click();
  return tool;
}

test("a form has a field for each property, and checks it", async () => {
  const tool = await openTool("form");
  await tool.getByLabel("text").fill("x");
  await tool.getByRole("combobox", { name: "choice" }).selectOption("right");
  await tool.getByRole("button", { name: "Run" }).click();
  assert.equal(await tool.getByLabel("text").evaluate((field) => field.validity.valid), false, "too short");
  await tool.getByLabel("text").fill("hello");
  assert.equal(await tool.getByLabel("number").inputValue(), "3");
  await tool.getByLabel("number").fill("7");
  await tool.getByRole("checkbox", { name: "flag" }).uncheck();
  await tool.getByRole("checkbox", { name: "b" }).check();
  await tool.getByLabel("any").fill("[1, 2");
  await tool.getByRole("button", { name: "Run" }).click();
  assert.equal(await tool.getByLabel("any").evaluate((field) => field.validity.customError), true, "no JSON");
  await tool.getByLabel("any").fill("[1]");
  await tool.getByRole("button", { name: "Edit as JSON" }).click();
  const raw = tool.getByLabel("Arguments as JSON");
  assert.deepEqual(JSON.parse(await raw.inputValue()), { text: "hello", number: 7, choice: "right", flag: false, list: ["b"], any: [1] });
  await raw.fill('{"text":"hello","number":8,"choice":"left","flag":true,"list":["c"],"any":[5]}');
  await tool.getByRole("button", { name: "Edit as a form" }).click();
  assert.equal(await tool.getByLabel("number").inputValue(), "8");
  await tool.getByRole("button", { name: "Run" }).click();
  await until("the result is shown", async () => (await page.getByText("hello 8 left true c 5").count()) > 0);
});

test("a time keeps its zone and its fractions until somebody changes it, and an empty one is none", async () => {
  page = await openPage(browser, `${server.url}/#/tools`, { timezoneId: "Asia/Kolkata" });
  const read = await page.evaluate(async () => {
    const { SchemaForm } = await import("/dashboard/form.js");
    const given = "2026-03-01T22:15:30.25Z";
    const form = new SchemaForm({ properties: { at: { type: "string", format: "date-time" } }, required: ["at"] }, { at: given });
    const field = form.element.querySelector("input");
    const values = [field.value, form.value().at];
    field.value = "2026-03-02T03:45:31";
    values.push(form.value().at, field.validity.valid);
    field.value = "";
    return [...values, form.value().at, field.validity.valid];
  });
  assert.deepEqual(read, ["2026-03-02T03:45:30", "2026-03-01T22:15:30.25Z", "2026-03-01T22:15:31.000Z", true, undefined, false]);
});

test("what the server refuses is said beside the form", async () => {
  const tool = await openTool("form");
  await tool.getByRole("button", { name: "Edit as JSON" }).click();
  await tool.getByLabel("Arguments as JSON").fill('{"text":7}');
  await tool.getByRole("button", { name: "Run" }).click();
  await tool.getByText(/choice/).first().waitFor();
});

test("a tool that takes long leads to its task", async () => {
  const tool = await openTool("wait");
  await tool.getByLabel("file").fill("tool");
  await tool.getByRole("button", { name: "Run" }).click();
  await page.locator("tw-terminal").getByText("waiting for tool").waitFor();
  await server.go("tool");
  await page.locator(".title").getByText("completed").waitFor();
});

test("tools are searched", async () => {
  page = await openPage(browser, `${server.url}/#/tools?q=colours`);
  await page.getByText("1 tool", { exact: true }).waitFor();
  assert.deepEqual(await page.locator("details.tool:visible h2").allTextContents(), ["paint"]);
});

test("nodes, load and rates are drawn", async () => {
  page = await openPage(browser, `${server.url}/#/nodes`);
  await page.getByText("All is well.").waitFor();
  await page.getByText("This server has its store for itself.").waitFor();
  await server.call("steady", { count: 500 });
  await page.locator(".plot", { hasText: "Open tasks" }).locator("strong", { hasText: /^[1-9]/ }).waitFor();
  await page.locator(".plot", { hasText: "Output" }).locator("strong", { hasText: /[1-9].*B\/s/ }).waitFor();
  assert.ok((await page.locator(".plot:visible").count()) >= 10);
});
