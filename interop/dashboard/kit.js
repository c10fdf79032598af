// A server of the real program, and a browser: each test has its own pages, each file its own server.
//
// TASKWIRE_BIN      the program; target/debug/taskwire if absent
// TASKWIRE_CHROMIUM the browser; /usr/bin/chromium if absent
// TASKWIRE_DASHBOARD_DEV  a script like serve.js, which serves the files of the dashboard in place of the program

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const root = resolve(import.meta.dirname, "../..");
const program = resolve(process.env.TASKWIRE_BIN ?? join(root, "target/debug/taskwire"));
const dev = process.env.TASKWIRE_DASHBOARD_DEV;
const flags = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--enable-precise-memory-info", "--js-flags=--expose-gc",
];

/** The tools of most tests. A file `NAME` in the data directory's parent lets a tool go on. */
export const TOOLS = `
[[tool]]
name = "lines"
description = "Writes many lines"
command = ["seq", "-f", "line %.0f of the output, as long as lines usually are, with some words", "{count}"]
input.count = { type = "integer", minimum = 1, default = 3 }

[[tool]]
name = "paint"
description = "Colours, and progress that is written over itself\\n\\nIt takes a moment."
command = ["sh", "-c", '''
printf '\\033[31mred\\033[0m plain \\033[1mbold\\033[0m\\n10%%\\r50%%\\r100%%\\n'
echo '{"event":"start","files":["a.rs"],"deep":{"er":{"est":true}}}'
echo 'see https://example.org/docs.'
taskwire emit --image dot.png
taskwire emit --audio beep.wav
taskwire emit --link https://example.org/report --name report
echo the end
''']

[[tool]]
name = "wait"
description = "Waits until a file is there"
command = ["sh", "-c", 'echo "waiting for $1"; until [ -e "go-$1" ]; do sleep 0.05; done; echo gone', "wait", "{file}"]
input.file = { type = "string", description = "which one" }
input.mood = { type = "string", enum = ["calm", "hasty"], default = "calm" }
env = { MOOD = "{mood}" }

[[tool]]
name = "turns"
description = "Has one place"
concurrency = 1
command = ["sh", "-c", 'until [ -e "go-$1" ]; do sleep 0.05; done', "turns", "{file}"]
input.file = { type = "string" }

[[tool]]
name = "ask"
description = "Asks where to go"
command = ["sh", "-c", 'echo checking; where=$(taskwire ask "Where shall this go?" --choice staging --choice production) || exit 1; echo "to $where"']

[[tool]]
name = "steady"
description = "Numbers, one after the other, until it has said all"
command = ["sh", "-c", 'n=0; while [ $n -lt $1 ]; do n=$((n+1)); echo "number $n"; sleep 0.01; done', "steady", "{count}"]
input.count = { type = "integer", minimum = 1 }
`;

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGNgYPiPFw0waQYGAKrVY53fTNF9AAAAAElFTkSuQmCC";

function wav() {
  const head = Buffer.alloc(44 + 800);
  head.write("RIFF", 0); head.writeUInt32LE(836, 4); head.write("WAVEfmt ", 8); head.writeUInt32LE(16, 16); head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22); head.writeUInt32LE(8000, 24); head.writeUInt32LE(8000, 28); head.writeUInt16LE(1, 32); head.writeUInt16LE(8, 34);
  head.write("data", 36); head.writeUInt32LE(800, 40);
  return head;
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Waits until something is so. What it waits for is outside the browser; within it, Playwright waits. */
export async function until(what, condition) {
  for (const begun = Date.now(); Date.now() - begun < 30_000; ) {
    const value = await condition();
    if (value) return value;
    await new Promise((done) => setTimeout(done, 20));
  }
  throw new Error(`this did not happen: ${what}`);
}

export class Server {
  static async start(config = TOOLS) {
    const server = new Server();
    server.dir = await mkdtemp(join(tmpdir(), "taskwire-dashboard-"));
    server.port = await freePort();
    await writeFile(join(server.dir, "taskwire.toml"), config);
    await writeFile(join(server.dir, "dot.png"), Buffer.from(PNG, "base64"));
    await writeFile(join(server.dir, "beep.wav"), wav());
    server.url = `http://127.0.0.1:${server.port}`;
    await server.up();
    if (dev) {
      const port = await freePort();
      server.front = spawn(process.execPath, [resolve(dev), String(port), String(server.port)], { cwd: server.dir, stdio: "inherit" });
      server.url = `http://127.0.0.1:${port}`;
      await until("the files are served", () => fetch(server.url).then((response) => response.ok, () => false));
    }
    return server;
  }

  async up() {
    const args = ["serve", "taskwire.toml", "--listen", `127.0.0.1:${this.port}`, "--data", join(this.dir, "data")];
    this.child = spawn(program, args, { cwd: this.dir, stdio: ["ignore", "ignore", "pipe"] });
    this.log = "";
    this.child.on("error", (error) => { this.log += error; });
    this.child.stderr.on("data", (data) => { this.log += data; });
    await until("the server is ready", () => {
      if (this.child.pid === undefined || this.child.exitCode !== null) throw new Error(`${program} did not start: ${this.log}`);
      return fetch(`http://127.0.0.1:${this.port}/readyz`).then((response) => response.ok, () => false);
    });
  }

  async kill() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.kill("SIGKILL");
    await once(this.child, "exit");
  }

  /** Lets a tool go on that waits for a file. */
  async go(name) {
    await writeFile(join(this.dir, `go-${name}`), "");
  }

  async stop() {
    // Its commands would go on without it.
    const { tasks } = await this.api("tasks?status=open&limit=200").catch(() => ({ tasks: [] }));
    for (const task of tasks ?? []) await this.api(`tasks/${task.id}/cancel`, "POST").catch(() => {});
    this.front?.kill();
    await this.kill();
    await rm(this.dir, { recursive: true, force: true, maxRetries: 5 });
  }

  token = undefined;

  async api(path, method = "GET", token = this.token) {
    const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
    return (await fetch(`http://127.0.0.1:${this.port}/api/${path}`, { method, headers })).json();
  }

  /** Calls a tool and gives the id of the task that it becomes. */
  async call(name, args = {}, token = this.token) {
    const response = await fetch(`http://127.0.0.1:${this.port}/mcp`, {
      method: "POST",
      headers: {
        "Content-Type": "application/json", Accept: "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call", "Mcp-Name": name, ...(token && { Authorization: `Bearer ${token}` }),
      },
      body: JSON.stringify({
        jsonrpc: "2.0", id: 1, method: "tools/call",
        params: {
          name, arguments: args,
          _meta: {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": { elicitation: {}, extensions: { "io.modelcontextprotocol/tasks": {}, "dev.taskwire/partials": {} } },
          },
        },
      }),
    });
    const { result, error } = await response.json();
    if (!result?.taskId) throw new Error(`no task: ${JSON.stringify(error ?? result)}`);
    return result.taskId;
  }

  async ended(id, token = this.token) {
    return until(`${id} ends`, async () => {
      const task = await this.api(`tasks/${id}`, "GET", token);
      return task.endedAt && task;
    });
  }
}

export async function openBrowser() {
  return chromium.launch({ executablePath: process.env.TASKWIRE_CHROMIUM ?? "/usr/bin/chromium", args: flags });
}

/** A window. What goes wrong in it is kept in `page.problems`; that a server is away is no fault of the page. */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.foreign = [];
  page.on("console", (message) => {
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) page.problems.push(message.text());
  });
  page.on("pageerror", (error) => page.problems.push(error.stack));
  page.on("request", (request) => { if (/^(https?|wss?):/.test(request.url()) && !request.url().startsWith(new URL(url).origin)) page.foreign.push(request.url()); });
  await page.goto(url);
  return page;
}

/** The text of the lines that are elements now. */
export function shownLines(page) {
  return page.locator("tw-terminal .row").allTextContents();
}

/** All lines of the output, also those that are no elements. */
export function allLines(page) {
  return page.evaluate(() => document.querySelector("tw-terminal").text().split("\n"));
}
