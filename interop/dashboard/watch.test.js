// How a task is watched, without a browser: a page that is refused, a task that is gone, a page that is not seen.

import assert from "node:assert/strict";
import { test } from "node:test";

const page = Object.assign(new EventTarget(), { hidden: false });
globalThis.document = page;
globalThis.sessionStorage = { getItem: () => null };
const { Refused, watch } = await import("../../crates/taskwire/src/dashboard/server.js");

const ID = "one";

/** Watches the task of a server that answers so, and says what was asked, what was told, and how it ended. */
async function watching(answer, signal = new AbortController().signal) {
  const asked = [];
  const told = [];
  globalThis.fetch = async (path, init) => {
    asked.push(path);
    return answer(path, init);
  };
  const watcher = {
    output: (chunks) => told.push(...chunks.map(({ seq }) => seq)),
    dropped: (from) => told.push(`from ${from}`),
    changed: () => told.push("changed"),
  };
  const error = await watch(ID, true, watcher, signal).then(() => undefined, (error) => error);
  return { asked, told, error };
}

const json = (value, status = 200) => new Response(JSON.stringify(value), { status, headers: { "Content-Type": "application/json" } });
const output = (from, count, ended) => json({ chunks: Array.from({ length: count }, (_, i) => ({ seq: from + i, blocks: [] })), more: false, ended });
const acknowledged = (taskIds) => ({ method: "notifications/subscriptions/acknowledged", params: { notifications: { taskIds } } });
const partial = (seq) => ({ method: "notifications/tasks/partial", params: { seq, content: [] } });

/** A stream that ends only if it is aborted. */
function stream(messages, signal) {
  const body = new ReadableStream({
    start(controller) {
      for (const message of messages) controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(message)}\n\n`));
      signal.addEventListener("abort", () => controller.error(signal.reason));
    },
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

test("a page that may not use the protocol reads the output instead", async () => {
  const { asked, told, error } = await watching((path) => (path === "/mcp" ? json({ error: { message: "this origin may not" } }, 403) : output(0, 2, true)));
  assert.equal(error, undefined);
  assert.deepEqual(asked, ["/mcp", "/api/tasks/one/output?from=0"]);
  assert.deepEqual(told, [0, 1, "changed"]);
});

test("a task that the server leaves out of its acknowledgement is gone", async () => {
  const { error } = await watching((_, { signal }) => stream([acknowledged([])], signal));
  assert.ok(error instanceof Refused);
  assert.equal(error.status, 404);
});

test("a page that cannot be seen holds no stream, and goes on where it was", async () => {
  const seen = [];
  const end = { method: "notifications/tasks", params: { status: "completed" } };
  const { told, error } = await watching((_, { body, signal }) => {
    const from = JSON.parse(body).params.notifications["dev.taskwire/partials"][0].fromSeq;
    seen.push(from);
    if (from > 0) return stream([acknowledged([ID]), partial(2), end], signal);
    const hide = () => {
      page.hidden = true;
      page.dispatchEvent(new Event("visibilitychange"));
      assert.ok(signal.aborted, "the stream is ended");
      setTimeout(() => {
        assert.deepEqual(seen, [0], "nothing is asked meanwhile");
        page.hidden = false;
        page.dispatchEvent(new Event("visibilitychange"));
      }, 50);
    };
    setTimeout(hide, 50);
    return stream([acknowledged([ID]), partial(0), partial(1)], signal);
  });
  assert.equal(error, undefined);
  assert.deepEqual(seen, [0, 2]);
  assert.deepEqual(told, [0, 1, 2, "changed"]);
});

test("a page that is left while it cannot be seen ends", async () => {
  page.hidden = true;
  const left = new AbortController();
  const watched = watching(() => assert.fail("nothing is asked"), left.signal);
  left.abort();
  assert.deepEqual(await watched, { asked: [], told: [], error: undefined });
  page.hidden = false;
});
