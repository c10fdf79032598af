// Who looks sees what is theirs: a token is asked for, two callers have two windows, an admin sees all, and some may only look.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server, TOOLS, openBrowser, openPage, until } from "./kit.js";

const AUTH = `
[auth]
scopes = { "tools/call" = ["write"], "tasks/cancel" = ["write"], "tasks/update" = ["write"] }
tokens = [
  { token = "ann", caller = "ann", scopes = ["read", "write"] },
  { token = "bob", caller = "bob", scopes = ["read", "write"] },
  { token = "looker", caller = "ann", scopes = ["read"] },
  { token = "root", caller = "root", admin = true },
]
`;

let server, browser;
before(async () => { [server, browser] = await Promise.all([Server.start(AUTH + TOOLS), openBrowser()]); server.token = "root"; });
after(async () => { await browser?.close(); await server?.stop(); });

async function signIn(token, hash = "") {
  const page = await openPage(browser, server.url + hash);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  return page;
}

test("a token is asked for, a wrong one is refused, and signing out forgets it", async () => {
  const page = await signIn("wrong");
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Token").fill("ann");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Tasks" }).waitFor();
  assert.match(await page.locator(".who").textContent(), /^ann/);
  assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0, "nothing stays on this machine");
  await page.reload();
  await page.getByRole("heading", { name: "Tasks" }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.deepEqual(page.problems, []);
});

test("a token that cannot be one is refused, and one that was copied with its scheme is taken", async () => {
  const page = await signIn("žeton");
  await page.getByText("The token has a character that no token can have.").waitFor();
  await page.getByLabel("Token").fill("two words");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Token").fill("Bearer ann");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Tasks" }).waitFor();
  await page.goto(`${server.url}/#/nodes`);
  await page.getByText("Only an admin can see this.").waitFor();
  assert.deepEqual(page.problems, []);
});

test("two callers in two windows see nothing of each other, and an admin sees both", async () => {
  const [ann, bob] = await Promise.all([signIn("ann"), signIn("bob")]);
  const hers = await server.call("wait", { file: "a" }, "ann");
  const his = await server.call("ask", {}, "bob");
  const row = (page, id) => page.locator(`ul.tasks a[href="#/task/${id}"]`);
  await row(ann, hers).waitFor();
  await row(bob, his).waitFor();
  assert.deepEqual([await row(ann, his).count(), await row(bob, hers).count()], [0, 0]);
  assert.equal(await ann.locator("nav").getByText("waiting").isVisible(), false);
  assert.equal(await ann.getByRole("link", { name: "Nodes" }).count(), 0);
  await bob.goto(`${server.url}/#/task/${hers}`);
  await bob.getByText("There is no such task.").waitFor();
  const root = await signIn("root");
  await row(root, hers).waitFor();
  await row(root, his).click();
  await root.getByRole("heading", { name: "Where shall this go?" }).waitFor();
  await root.getByText("Only the caller of the task can answer this.").waitFor();
  await root.locator("tw-terminal").getByText("checking").waitFor();
  await root.getByRole("button", { name: "Cancel", exact: true }).click();
  await root.getByRole("button", { name: "Cancel the task" }).click();
  await row(bob, his).or(bob.getByText("There is no such task.")).waitFor();
  assert.equal((await server.ended(his)).status, "cancelled");
  await root.goto(`${server.url}/#/task/${hers}`);
  await root.locator("tw-terminal").getByText("waiting for a").waitFor();
  await server.go("a");
  await root.locator("tw-terminal").getByText("gone").waitFor();
  await root.locator(".title").getByText("completed").waitFor();
  assert.deepEqual([...ann.problems, ...bob.problems, ...root.problems], []);
});

test("who may only look is offered nothing else", async () => {
  const id = await server.call("ask", {}, "ann");
  const page = await signIn("looker");
  await page.getByText("(may only look)").waitFor();
  await page.locator("ul.tasks > li").first().waitFor();
  assert.equal(await page.getByRole("checkbox").count(), 0);
  await page.goto(`${server.url}/#/task/${id}`);
  await page.getByText("Only the caller of the task can answer this.").waitFor();
  assert.equal(await page.getByRole("button", { name: /^(Cancel|Run again…|Answer)$/ }).count(), 0);
  await page.goto(`${server.url}/#/tools`);
  await page.locator("details.tool summary").first().click();
  await page.getByText("You may look, but not run tools.").waitFor();
  await until("nothing is left running", () => server.api(`tasks/${id}/cancel`, "POST"));
});
