// A task server of @modelcontextprotocol/sdk 1.x (2025-11-25), as its documentation says to write one: `registerToolTask`
// on an in-memory task store and message queue.
//
//   node ts/legacy-server.mjs [--stdio | --json | --resumable]
//
// Over HTTP it takes a free port and prints "listening URL"; every session has its own server, all share one store, which
// shows a task only to the session that made it. `--json` answers without event streams, `--resumable` keeps the events of
// its streams.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';
import * as z from 'zod/v4';

const { values: flags } = parseArgs({
  options: { stdio: { type: 'boolean' }, json: { type: 'boolean' }, resumable: { type: 'boolean' } },
});

const store = new InMemoryTaskStore();
const queue = new InMemoryTaskMessageQueue();
const pollInterval = 200;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const text = (text) => ({ content: [{ type: 'text', text }] });

const form = {
  type: 'object',
  properties: {
    name: { type: 'string', title: 'Name', minLength: 1 },
    age: { type: 'integer', title: 'Age', minimum: 0, default: 30 },
    color: { type: 'string', title: 'Color', enum: ['red', 'green'] },
  },
  required: ['name', 'color'],
};

/** The answer to the form in a line. */
function said({ action, content }) {
  return action === 'accept' ? `${content.name}, ${content.age}, ${content.color}` : `no answer: ${action}`;
}

/** Registers a tool whose calls are tasks. `work` gets the arguments and what it needs to speak for its task. */
function registerTask(server, name, { inputSchema, taskSupport, description }, work) {
  server.experimental.tasks.registerToolTask(
    name,
    { description, inputSchema, execution: { taskSupport } },
    {
      async createTask(args, extra) {
        const task = await extra.taskStore.createTask({ ttl: extra.taskRequestedTtl ?? 300_000, pollInterval });
        const { taskId } = task;
        const relatedTask = { taskId };
        const token = extra._meta?.progressToken;
        const run = {
          say: (message) => extra.taskStore.updateTaskStatus(taskId, 'working', message),
          async progress(progress, total) {
            if (token === undefined) return;
            const params = { progressToken: token, progress, total };
            await server.server.notification({ method: 'notifications/progress', params }, { relatedTask });
          },
          async ask(message, requestedSchema) {
            const params = { mode: 'form', message, requestedSchema };
            const answer = await extra.sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema, { relatedTask });
            await extra.taskStore.updateTaskStatus(taskId, 'working');
            return answer;
          },
          stopped: async () => (await extra.taskStore.getTask(taskId)).status === 'cancelled',
          fail: (message) => extra.taskStore.updateTaskStatus(taskId, 'failed', message),
        };
        work(args, run)
          .then((result) => result && extra.taskStore.storeTaskResult(taskId, result.isError ? 'failed' : 'completed', result))
          .catch((error) => console.error(`${name} ${taskId}: ${error.message}`));
        return { task };
      },
      getTask: (_args, extra) => extra.taskStore.getTask(extra.taskId),
      getTaskResult: (_args, extra) => extra.taskStore.getTaskResult(extra.taskId),
    },
  );
}

function taskServer() {
  const server = new McpServer(
    { name: 'typescript-sdk', version: '1.32.2' },
    {
      capabilities: { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
      taskStore: store,
      taskMessageQueue: queue,
    },
  );

  const quick = { description: 'Greets', inputSchema: { name: z.string() } };
  server.registerTool('quick', quick, async ({ name }) => text(`Hello, ${name}!`));

  const held = { description: 'Takes steps, and is never a task', inputSchema: { steps: z.number().int() } };
  server.registerTool('held', held, async ({ steps }, extra) => {
    for (let step = 1; step <= steps; step++) {
      const params = { progressToken: extra._meta?.progressToken, progress: step, total: steps, message: `step ${step} of ${steps}` };
      if (params.progressToken !== undefined) await extra.sendNotification({ method: 'notifications/progress', params });
      await sleep(250);
    }
    return text(`${steps} steps taken`);
  });

  const askHeld = { description: 'Asks for a form, and is never a task', inputSchema: {} };
  server.registerTool('ask_held', askHeld, async (_args, extra) => {
    const params = { mode: 'form', message: 'Who are you?', requestedSchema: form };
    return text(said(await extra.sendRequest({ method: 'elicitation/create', params }, ElicitResultSchema)));
  });

  const slow = { description: 'Takes steps', inputSchema: { steps: z.number().int() }, taskSupport: 'optional' };
  registerTask(server, 'slow', slow, async ({ steps }, run) => {
    for (let step = 1; step <= steps; step++) {
      await run.say(`step ${step} of ${steps}`);
      await run.progress(step, steps);
      await sleep(250);
    }
    return text(`${steps} steps taken`);
  });

  const ask = { description: 'Asks for a form', inputSchema: {}, taskSupport: 'required' };
  registerTask(server, 'ask', ask, async (_args, run) => {
    return text(said(await run.ask('Who are you?', form)));
  });

  const askTwice = { description: 'Asks two questions', inputSchema: {}, taskSupport: 'required' };
  registerTask(server, 'ask_twice', askTwice, async (_args, run) => {
    const flag = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] };
    const first = await run.ask('First?', flag);
    const second = await run.ask('Second?', flag);
    return text(`${first.content?.ok} ${second.content?.ok}`);
  });

  const endless = { description: 'Works until cancelled', inputSchema: {}, taskSupport: 'required' };
  registerTask(server, 'endless', endless, async (_args, run) => {
    while (!(await run.stopped())) await sleep(100);
  });

  const broken = { description: 'Ends with a tool error', inputSchema: {}, taskSupport: 'required' };
  registerTask(server, 'broken', broken, async () => {
    await sleep(300);
    return { ...text('it broke'), isError: true };
  });

  // Failed without a result: tasks/result is then answered with a JSON-RPC error.
  const fault = { description: 'Fails without a result', inputSchema: {}, taskSupport: 'required' };
  registerTask(server, 'fault', fault, async (_args, run) => {
    await sleep(300);
    await run.fail('out of order');
  });

  return server;
}

if (flags.stdio) {
  await taskServer().connect(new StdioServerTransport());
  process.stdin.on('end', () => process.exit(0));
} else {
  const sessions = new Map();
  const http = createServer(async (request, response) => {
    const id = request.headers['mcp-session-id'];
    let transport = sessions.get(id);
    if (id !== undefined && transport === undefined) {
      response.writeHead(404, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: -32001, message: 'Session not found' }, id: null }));
      return;
    }
    if (transport === undefined) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (session) => sessions.set(session, transport),
        onsessionclosed: (session) => sessions.delete(session),
        enableJsonResponse: flags.json,
        ...(flags.resumable && { eventStore: new InMemoryEventStore(), retryInterval: 100 }),
      });
      await taskServer().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  http.listen(0, '127.0.0.1', () => console.log(`listening http://127.0.0.1:${http.address().port}/mcp`));
}
