// Shared plumbing for the TypeScript-client programs.
//
// Both packages are used as published. ext-tasks asks its host for one thing
// when the server speaks 2026-07-28: a raw request path (`rawDispatch`), since
// the SDK client's own codec refuses `resultType: "task"`. The one below sends
// through the SDK's own StreamableHTTPClientTransport, so every header and
// every byte of framing on the wire is still the SDK's.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';

export const PROTOCOL_VERSION = '2026-07-28';
export const TASKS = 'io.modelcontextprotocol/tasks';
/** What the names of Taskwire's own extensions begin with. */
export const OURS = 'dev.taskwire';
export const SUBSCRIPTION_ID = 'io.modelcontextprotocol/subscriptionId';

export const url = process.env.INTEROP_URL ?? process.argv[2];
if (!url) {
  console.error('usage: node <file> URL   (or set INTEROP_URL)');
  process.exit(2);
}

const clientInfo = { name: 'taskwire-interop-ts', version: '0.0.0' };

/** A fetch that records every JSON-RPC message really sent, with its headers and HTTP status, and the text of JSON answers. */
export function recordingFetch(wire) {
  return async (input, init) => {
    const entry = { http: init?.method ?? 'GET', headers: new Headers(init?.headers), at: Date.now() };
    if (typeof init?.body === 'string') entry.message = JSON.parse(init.body);
    wire.push(entry);
    const response = await fetch(input, init);
    entry.status = response.status;
    entry.contentType = response.headers.get('content-type');
    if (entry.contentType?.startsWith('application/json')) entry.answer = await response.clone().text();
    return response;
  };
}

/** Raw request path over the SDK transport: own string ids, answers matched by id. */
function rawDispatchOver(transport, inbound) {
  const pending = new Map();
  let counter = 0;
  const sdkOnMessage = transport.onmessage;
  transport.onmessage = (message, extra) => {
    inbound.push(message);
    const waiter = message.method === undefined ? pending.get(message.id) : undefined;
    if (waiter === undefined) return sdkOnMessage.call(transport, message, extra);
    pending.delete(message.id);
    waiter.resolve(
      message.error === undefined
        ? { kind: 'result', result: message.result }
        : { kind: 'error', error: message.error },
    );
  };
  return (request, options = {}) =>
    new Promise((resolve, reject) => {
      const id = `ext-tasks:${++counter}`;
      pending.set(id, { resolve });
      const fail = (error) => {
        if (!pending.delete(id)) return;
        // Only HTTP 400 bodies reach onmessage; a JSON-RPC error under another
        // status arrives as an exception carrying the text.
        try {
          const body = JSON.parse(error?.data?.text);
          if (body.error !== undefined) return resolve({ kind: 'error', error: body.error });
        } catch {}
        reject(error);
      };
      options.signal?.addEventListener('abort', () => fail(options.signal.reason), { once: true });
      transport
        .send(
          { jsonrpc: '2.0', id, ...request },
          {
            requestSignal: options.signal,
            headers: options.context?.headers,
            onRequestStreamEnd: () => fail(new Error(`${request.method}: stream ended without a response`)),
          },
        )
        .catch(fail);
    });
}

/**
 * Connects the official client in the modern era.
 * `tasks: false` leaves the extension undeclared; `onInputRequest` answers elicitations.
 */
export async function connect({ tasks = true, onInputRequest } = {}) {
  const wire = [];
  const inbound = [];
  const capabilities = { elicitation: { form: {} }, ...(tasks ? { extensions: { [TASKS]: {} } } : {}) };
  const client = new Client(clientInfo, {
    capabilities,
    versionNegotiation: { mode: { pin: PROTOCOL_VERSION } },
  });
  const transport = new StreamableHTTPClientTransport(new URL(url), { fetch: recordingFetch(wire) });
  const notifications = [];
  const waiters = new Set();
  client.fallbackNotificationHandler = async (notification) => {
    notifications.push(notification);
    for (const wake of waiters) wake();
  };
  await client.connect(transport);
  const rawDispatch = rawDispatchOver(transport, inbound);
  const errors = [];
  const session = tasks
    ? createTaskSessionFromClient(client, {
        endpointId: 'taskwire-interop',
        rawDispatch,
        v2RequestFraming: { protocolVersion: PROTOCOL_VERSION, clientInfo, clientCapabilities: capabilities },
        onInputRequest,
        onError: (error) => errors.push(error),
      })
    : undefined;

  return {
    client,
    session,
    wire,
    inbound,
    notifications,
    /** Errors ext-tasks reported in the background (for example an unparsable notification). */
    errors,
    /** Requests really sent with this method. */
    sent: (method) => wire.filter((entry) => entry.message?.method === method),
    /** The raw answer to the n-th request of this method, as it came off the wire. */
    rawResult(method, index = -1) {
      const request = this.sent(method).at(index);
      return inbound.find((m) => m.method === undefined && m.id === request?.message.id)?.result;
    },
    /** Resolves with the first `notifications/tasks` that satisfies the predicate. */
    async taskNotification(predicate, timeoutMs = 15_000) {
      const find = () => notifications.find((n) => n.method === 'notifications/tasks' && predicate(n.params));
      const deadline = Date.now() + timeoutMs;
      for (;;) {
        const found = find();
        if (found) return found;
        const left = deadline - Date.now();
        if (left <= 0) throw new Error('no such notifications/tasks in time; saw ' + JSON.stringify(notifications));
        await new Promise((resolve) => {
          const timer = setTimeout(done, left);
          function done() {
            clearTimeout(timer);
            waiters.delete(done);
            resolve();
          }
          waiters.add(done);
        });
      }
    },
    async close() {
      await session?.close();
      await client.close();
    },
  };
}

export const text = (result) => (result.content ?? []).map((block) => block.text ?? '').join('\n');

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Polls a snapshot until it has this status. */
export async function untilStatus(controller, status, timeoutMs = 10_000) {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const view = await controller.snapshot();
    if (view.status === status) return view;
    if (Date.now() > deadline || ['completed', 'failed', 'cancelled'].includes(view.status))
      throw new Error(`status is ${view.status}, wanted ${status}`);
    await sleep(100);
  }
}

/** A plausible answer to any form elicitation, built from its schema. */
export function answerForm(params) {
  const content = {};
  for (const [name, schema] of Object.entries(params.requestedSchema?.properties ?? {})) {
    if (schema.type === 'boolean') content[name] = true;
    else if (schema.type === 'integer' || schema.type === 'number') content[name] = schema.minimum ?? 1;
    else if (schema.type === 'array') content[name] = [];
    else content[name] = schema.enum?.[0] ?? schema.oneOf?.[0]?.const ?? 'interop';
  }
  return { action: 'accept', content };
}
