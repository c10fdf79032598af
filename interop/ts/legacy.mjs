// Shared plumbing for the programs of the 2025-11-25 era: two unmodified clients, and boxes for what reaches them.
import { Client as ModernClient, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { createTaskSessionFromClient } from '@modelcontextprotocol/ext-tasks/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answerForm, recordingFetch, sleep, url } from './harness.mjs';

export const VERSION = '2025-11-25';
export const RELATED = 'io.modelcontextprotocol/related-task';
export const TERMINAL = ['completed', 'failed', 'cancelled'];

const clientInfo = { name: 'taskwire-interop-ts-legacy', version: '0.0.0' };

/** Resolves with what `find` returns, once that is something. */
export async function until(what, find, timeoutMs = 15_000) {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const found = await find();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not in time: ${what}`);
    await sleep(20);
  }
}

/** What both clients' connections have in common. */
function connection(client, wire) {
  const notifications = [];
  const errors = [];
  client.fallbackNotificationHandler = async (notification) => void notifications.push(notification);
  client.onerror = (error) => errors.push(error);
  return {
    client,
    wire,
    notifications,
    /** What the client reported in the background. */
    errors,
    /** Requests really sent with this method. */
    sent: (method) => wire.filter((entry) => entry.message?.method === method),
    /** GET requests that resumed a stream. */
    resumed: () => wire.filter((entry) => entry.http === 'GET' && entry.headers.has('last-event-id')),
    /** Both clients open their standing stream without waiting for it. */
    standing: () => until('the standing stream', () => wire.some((entry) => entry.http === 'GET' && entry.status === 200)),
    notification: (method, predicate = () => true) =>
      until(method, () => notifications.find((n) => n.method === method && predicate(n.params))),
  };
}

/** Connects the TypeScript SDK 1.x. `answer` answers elicitations; `sessionId` goes on with a session that another client began. */
export async function connectSdk({ answer = answerForm, sessionId } = {}) {
  const wire = [];
  const client = new Client(clientInfo, { capabilities: { elicitation: {}, sampling: {}, roots: {} } });
  const asked = [];
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    asked.push(params);
    return answer(params);
  });
  client.setRequestHandler(CreateMessageRequestSchema, async ({ params }) => {
    asked.push(params);
    return { role: 'assistant', model: 'none', content: { type: 'text', text: `You said: ${params.messages[0].content.text}` } };
  });
  client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [{ uri: 'file:///interop' }] }));
  const peer = connection(client, wire);
  const transport = new StreamableHTTPClientTransport(new URL(url), { fetch: recordingFetch(wire), sessionId });
  await client.connect(transport);
  if (sessionId === undefined) await peer.standing();
  return { ...peer, transport, tasks: client.experimental.tasks, asked, close: () => client.close() };
}

/** Connects ext-tasks in its v1 mode: it is what a session gets whose server speaks 2025-11-25. */
export async function connectExtTasks({ onInputRequest } = {}) {
  const wire = [];
  const client = new ModernClient(clientInfo, { capabilities: { elicitation: { form: {} } } });
  const peer = connection(client, wire);
  await client.connect(new ModernTransport(new URL(url), { fetch: recordingFetch(wire) }));
  await peer.standing();
  const session = createTaskSessionFromClient(client, {
    endpointId: 'taskwire-interop',
    onInputRequest,
    onError: (error) => peer.errors.push(error),
  });
  return {
    ...peer,
    session,
    async close() {
      await session.close();
      await client.close();
    },
  };
}
