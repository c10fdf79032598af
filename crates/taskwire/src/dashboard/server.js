// Talks to the server: the methods of the protocol by POST /mcp, and the operators' API under /api. Both are asked with the caller's token,
// which is kept for this window alone.

/**
 * @typedef {{ done: number, total?: number }} Progress
 * @typedef {{ method: string, params?: any }} Question
 * @typedef {{
 *   id: string, caller: string, tool: string, status: string, message?: string, progress?: Progress, createdAt: string, updatedAt: string,
 *   endedAt?: string, queuedAt?: string, attempt: number, epoch: number, hidden: boolean, output: { chunks: number, bytes: number },
 *   openQuestions: number, questions?: Record<string, Question>, result?: any, error?: { code: number, message: string, data?: any },
 * }} Task
 * @typedef {{ tasks: Task[], nextCursor?: string }} TaskPage
 * @typedef {{ type: string, text?: string, data?: string, mimeType?: string, uri?: string, name?: string, title?: string,
 *   description?: string, resource?: { uri?: string, text?: string, blob?: string, mimeType?: string } }} Block
 * @typedef {{ seq: number, content: Block[] }} Chunk
 * @typedef {{ version: number, at: string, kind: string, attempt?: number, epoch?: number, spentMs?: number, key?: string, arguments?: any }} LogEvent
 * @typedef {{ name: string, title?: string, description?: string, inputSchema: any, annotations?: any }} Tool
 * @typedef {{ caller: string, admin: boolean, server: string, version: string,
 *   may: { list: boolean, read: boolean, call: boolean, answer: boolean, cancel: boolean } }} Caller
 */

const VERSION = "2026-07-28";
const TASKS = "io.modelcontextprotocol/tasks";
const PARTIALS = "dev.taskwire/partials";
const TOKEN = "taskwire.token";
/** How long to wait before a connection is tried again: at first, and at most. */
const RETRY_MS = 250;
const RETRY_MAX_MS = 5000;

/** An answer that refuses. */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Whether the same request would be refused once more. @param {unknown} error @returns {error is Refused} */
export function isFinal(error) {
  return error instanceof Refused && error.status < 500 && error.status !== 429;
}

/** Tells `signin` when a token is needed, and `connection` when the server is lost (`detail` is false) or found again. */
export const events = new EventTarget();

let isConnected = true;

/** @param {boolean} now */
function connected(now) {
  if (now === isConnected) return;
  isConnected = now;
  events.dispatchEvent(new CustomEvent("connection", { detail: now }));
}

export function token() {
  return sessionStorage.getItem(TOKEN);
}

/** @param {string | null} value */
export function setToken(value) {
  if (value === null) sessionStorage.removeItem(TOKEN);
  else sessionStorage.setItem(TOKEN, value);
}

/**
 * @param {string} path
 * @param {RequestInit} init
 */
async function request(path, init) {
  const headers = new Headers(init.headers);
  const secret = token();
  try {
    if (secret) headers.set("Authorization", `Bearer ${secret}`);
  } catch {
    throw new Refused(400, "The token has a character that no token can have.");
  }
  let response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (!init.signal?.aborted) connected(false);
    throw error;
  }
  connected(true);
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = body?.error?.message ?? `the server answered ${response.status}`;
  if (response.status === 401) events.dispatchEvent(new CustomEvent("signin", { detail: message }));
  throw new Refused(response.status, message);
}

/**
 * Asks the operators' API.
 * @param {string} path
 * @param {{ method?: string, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function api(path, { method = "GET", signal } = {}) {
  const headers = method === "POST" ? { "Content-Type": "application/json" } : undefined;
  return (await request(`/api/${path}`, { method, signal, headers })).json();
}

/** @param {AbortSignal} [signal] */
export async function metrics(signal) {
  return (await request("/metrics", { signal })).text();
}

let lastId = 0;

/**
 * @param {string} method
 * @param {any} params
 * @param {AbortSignal} [signal]
 */
function post(method, params, signal) {
  const headers = new Headers({
    "Content-Type": "application/json",
    Accept: "application/json, text/event-stream",
    "MCP-Protocol-Version": VERSION,
    "Mcp-Method": method,
  });
  const name = { "tools/call": params.name, "resources/read": params.uri }[method] ?? params.taskId;
  if (name) headers.set("Mcp-Name", headerText(name));
  const _meta = {
    ...params._meta,
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": { name: "taskwire-dashboard", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": { elicitation: { form: {}, url: {} }, extensions: { [TASKS]: {}, [PARTIALS]: {} } },
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: ++lastId, method, params: { ...params, _meta } });
  return request("/mcp", { method: "POST", headers, body, signal });
}

/**
 * A name as a header can carry it: one that is not plain is sent as Base64.
 * @param {string} name
 */
function headerText(name) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(name) && !name.startsWith("=?base64?")) return name;
  return `=?base64?${btoa(String.fromCharCode(...new TextEncoder().encode(name)))}?=`;
}

/**
 * The messages of a response, as they come.
 * @param {Response} response
 * @returns {AsyncGenerator<any, void, void>}
 */
async function* messages(response) {
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    yield await response.json();
    return;
  }
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      // An event of this server is one line; comments keep the connection alive.
      for (const line of lines) {
        if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    // Also when nobody wants the rest.
    reader.cancel().catch(() => {});
  }
}

/**
 * A request of the protocol, and its result.
 * @param {string} method
 * @param {any} [params]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function call(method, params = {}, signal) {
  for await (const message of messages(await post(method, params, signal))) {
    if (message.error) throw new Refused(400, message.error.message);
    if ("result" in message) return message.result;
  }
  throw new Error("the server ended the response before its end");
}

/**
 * All tools.
 * @param {AbortSignal} [signal]
 * @returns {Promise<Tool[]>}
 */
export async function tools(signal) {
  const all = [];
  let cursor;
  do {
    const page = await call("tools/list", cursor === undefined ? {} : { cursor }, signal);
    all.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return all;
}

/**
 * @typedef {object} Watcher What a task that is watched tells.
 * @property {(chunks: Chunk[]) => void} output Each chunk once, in their order.
 * @property {(from: number) => void} dropped What was before this chunk is no longer kept.
 * @property {() => void} changed The task has another state: read it.
 */

/**
 * Watches a task until it has ended and everything was told, whatever happens to the connection or the server meanwhile. Chunks are numbered
 * without a gap, so the next number is all that is needed to go on. Nothing is asked while the page cannot be seen: a browser has few
 * connections to a server, for all its pages together.
 * @param {string} id
 * @param {boolean} isOwn Only a caller's own tasks can be listened to; those of others are read again and again. So are a caller's own where
 *   the server lets this page look but not use the protocol.
 * @param {Watcher} watcher
 * @param {AbortSignal} signal
 */
export async function watch(id, isOwn, watcher, signal) {
  const progress = { next: 0, ended: false };
  let delay = RETRY_MS;
  let canListen = isOwn;
  while (!signal.aborted && !progress.ended) {
    const before = progress.next;
    await visible(signal);
    if (signal.aborted) return;
    const hidden = new AbortController();
    const hide = () => { if (document.hidden) hidden.abort(); };
    document.addEventListener("visibilitychange", hide);
    try {
      await (canListen ? listen : poll)(id, progress, watcher, AbortSignal.any([signal, hidden.signal]));
    } catch (error) {
      if (signal.aborted) return;
      if (canListen && error instanceof Refused && error.status === 403) canListen = false;
      else if (isFinal(error)) throw error;
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (progress.ended) return;
    if (hidden.signal.aborted) continue;
    delay = progress.next > before ? RETRY_MS : Math.min(delay * 2, RETRY_MAX_MS);
    await pause(delay, signal);
  }
}

/**
 * @param {string} id
 * @param {{ next: number, ended: boolean }} progress
 * @param {Watcher} watcher
 * @param {AbortSignal} signal
 */
async function listen(id, progress, watcher, signal) {
  const notifications = { taskIds: [id], [PARTIALS]: [{ taskId: id, fromSeq: progress.next }] };
  for await (const { method, params, error } of messages(await post("subscriptions/listen", { notifications }, signal))) {
    if (error) throw new Refused(400, error.message);
    switch (method) {
      case "notifications/subscriptions/acknowledged":
        // A task that is not there is left out, without an error.
        if (!params.notifications.taskIds?.includes(id)) throw new Refused(404, "there is no such task");
        break;
      case "notifications/tasks/partial":
        take(progress, watcher, [{ seq: params.seq, content: params.content }]);
        break;
      case "notifications/tasks":
        watcher.changed();
        // The end comes after all output.
        if (params.status === "completed" || params.status === "failed" || params.status === "cancelled") {
          progress.ended = true;
          return;
        }
        break;
    }
  }
}

/**
 * @param {string} id
 * @param {{ next: number, ended: boolean }} progress
 * @param {Watcher} watcher
 * @param {AbortSignal} signal
 */
async function poll(id, progress, watcher, signal) {
  while (!signal.aborted) {
    const page = await api(`tasks/${encodeURIComponent(id)}/output?from=${progress.next}`, { signal });
    take(progress, watcher, page.chunks.map((/** @type {any} */ chunk) => ({ seq: chunk.seq, content: chunk.blocks })));
    if (page.more) continue;
    watcher.changed();
    if (page.ended) {
      progress.ended = true;
      return;
    }
    await pause(2000, signal);
  }
}

/**
 * @param {{ next: number }} progress
 * @param {Watcher} watcher
 * @param {Chunk[]} chunks
 */
function take(progress, watcher, chunks) {
  const fresh = chunks.filter((chunk) => chunk.seq >= progress.next);
  if (fresh.length === 0) return;
  if (fresh[0].seq > progress.next) watcher.dropped(fresh[0].seq);
  progress.next = fresh[fresh.length - 1].seq + 1;
  watcher.output(fresh);
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}

/**
 * Waits until the page can be seen.
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function visible(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/**
 * Does something again and again while the page can be seen. Errors do not end it.
 * @param {number} ms
 * @param {AbortSignal} signal
 * @param {() => Promise<void>} action
 */
export async function repeat(ms, signal, action) {
  while (!signal.aborted) {
    if (!document.hidden) await action().catch(() => {});
    await pause(document.hidden ? 250 : ms, signal);
  }
}
