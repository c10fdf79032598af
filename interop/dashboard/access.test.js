// Everybody can use it: axe finds nothing serious in any page in either theme, nothing sticks out of a phone, and keys do all.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Server, openBrowser, openPage } from "./kit.js";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
/** Where pictures go, for people to look at. */
const pictures = process.env.TASKWIRE_DASHBOARD_PICTURES;
const BUILD = `
retention = "1day"

[[tool]]
name = "build"
description = "Builds the project\\n\\nWrites what it does, and how far it is."
command = ["sh", "-c", '''
printf '\\033[1mBuilding\\033[0m taskwire, see https://example.org/build\\n'
echo '{"event":"start","target":"release","features":["tls","traces"]}'
for crate in bytes futures hyper tokio rusqlite serde rustls jsonwebtoken; do printf '\\033[32m   Compiling\\033[0m %s v1.2.0\\n' $crate; sleep 0.02; done
printf '\\033[33mwarning\\033[0m: unused variable: \`left\`\\n\\033[31;1merror\\033[0m: test \\033[1mparser::empty\\033[0m failed\\n'
for n in 1 2 3 4 5 6 7; do echo "[$n/12] crates/part-$n"; sleep 0.02; done
until [ -e "go-$1" ]; do sleep 0.05; done
''', "build", "{name}"]
progress = '\\[(?<done>\\d+)/(?<total>\\d+)\\]'
input.name = { type = "string", description = "what to call it" }
input.profile = { type = "string", enum = ["debug", "release"], default = "debug", description = "how much to optimise" }
input.targets = { type = "array", items = { type = "string", enum = ["linux", "macos", "windows"] }, optional = true, description = "for which systems" }
input.verbose = { type = "boolean", default = false, description = "say more" }
env = { PROFILE = "{profile}", TARGETS = "{targets}", VERBOSE = "{verbose}" }

[[tool]]
name = "deploy"
description = "Deploys what was built, when somebody has said where"
command = ["sh", "-c", 'echo "checking the build"; where=$(taskwire ask "Where shall build 214 go?" --choice staging --choice production); echo "to $where"']

[[tool]]
name = "report"
description = "Writes a report"
command = ["sh", "-c", "echo all is well"]
`;

let server, browser, ids;
before(async () => {
  [server, browser] = await Promise.all([Server.start(BUILD), openBrowser()]);
  await server.go("nightly");
  ids = { done: await server.call("build", { name: "nightly" }) };
  await server.ended(ids.done);
  ids.stopped = await server.call("build", { name: "old" });
  await server.api(`tasks/${ids.stopped}/cancel`, "POST");
  ids.working = await server.call("build", { name: "release-7", profile: "release" });
  ids.asks = await server.call("deploy");
});
after(async () => { await browser?.close(); await server?.stop(); });

const views = [
  { name: "tasks", hash: () => "#/tasks", ready: (page) => page.locator("nav").getByText("1 waiting").waitFor() },
  { name: "task", hash: () => `#/task/${ids.working}`, ready: (page) => page.locator("tw-terminal").getByText("[7/12]").waitFor() },
  { name: "question", hash: () => `#/task/${ids.asks}`, ready: (page) => page.getByRole("heading", { name: "Where shall build 214 go?" }).waitFor() },
  { name: "ended", hash: () => `#/task/${ids.done}`, ready: (page) => page.locator(".outcome").first().waitFor() },
  {
    name: "tools", hash: () => "#/tools",
    ready: async (page) => { await page.locator("details.tool summary").first().click(); await page.getByLabel("name").waitFor(); },
  },
  { name: "nodes", hash: () => "#/nodes", ready: (page) => page.locator(".plot path[d^='M']").first().waitFor({ state: "attached" }) },
];

for (const theme of ["light", "dark"]) {
  for (const width of [1280, 390]) {
    test(`${theme}, ${width} pixels wide`, async (t) => {
      for (const view of views) {
        await t.test(view.name, async () => {
          // Scripts of others may not run in the page, so the policy is lifted for the one that looks at it.
          const page = await openPage(browser, `${server.url}/${view.hash()}`, {
            colorScheme: theme, viewport: { width, height: width === 390 ? 844 : 800 }, bypassCSP: true, reducedMotion: "reduce",
          });
          await view.ready(page);
          await page.addScriptTag({ path: axe });
          const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
          const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
          assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes.slice(0, 3).map(({ html, failureSummary }) => [html, failureSummary])]), []);
          const beyond = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(beyond <= 0, `${beyond} pixels stick out`);
          if (pictures) {
            await mkdir(pictures, { recursive: true });
            await page.screenshot({ path: join(pictures, `${view.name}-${theme}${width === 390 ? "-phone" : ""}.png`) });
          }
          assert.deepEqual(page.problems, []);
          await page.context().close();
        });
      }
    });
  }
}

test("a page can be used by keys alone, and says where the focus is", async () => {
  const page = await openPage(browser, `${server.url}/#/tasks`);
  await page.locator("ul.tasks > li").first().waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  const seen = new Set();
  for (let i = 0; i < 40; i += 1) {
    await page.keyboard.press("Tab");
    const [name, outline] = await page.evaluate(() => {
      const element = document.activeElement;
      const styles = [getComputedStyle(element), getComputedStyle(element, "::after")];
      return [element.getAttribute("aria-label") ?? element.textContent, styles.some((style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)];
    });
    if (!name || name.length > 100) break;
    seen.add(name);
    assert.ok(outline, `the focus can be seen on ${name}`);
  }
  for (const name of ["Text in the tasks below", "State", "Tool", "deploy", "build"]) assert.ok(seen.has(name), `${name} is reached: ${[...seen]}`);
  const theme = page.getByRole("button", { name: /^Theme/ });
  await theme.click();
  assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), "dark");
  await page.context().close();
});
