// The TypeScript SDK 1.x (`@modelcontextprotocol/sdk`), 2025-11-25: its task client, and the rest of that era.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { CallToolResultSchema, CreateTaskResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { OURS, text } from './harness.mjs';
import { connectSdk, RELATED, TERMINAL, until, VERSION } from './legacy.mjs';

const WATCHED = 'test://watched-resource';
let peer;

const call = (name, args = {}, options) => peer.client.callTool({ name, arguments: args }, CallToolResultSchema, options);

/** Everything that `callToolStream` yields for a call as a task. */
async function stream(name, args, options = {}) {
  const messages = [];
  for await (const message of peer.tasks.callToolStream({ name, arguments: args }, CallToolResultSchema, { task: {}, ...options }))
    messages.push(message);
  const [created] = messages;
  assert.equal(created.type, 'taskCreated', JSON.stringify(messages));
  return { messages, last: messages.at(-1), created: created.task, taskId: created.task.taskId };
}

/** Starts a task and leaves it alone. */
async function start(name, args, task = {}) {
  const params = { name, arguments: args, task };
  return (await peer.client.request({ method: 'tools/call', params }, CreateTaskResultSchema)).task;
}

const rejects = (promise, code) =>
  assert.rejects(promise, (error) => {
    assert.equal(error.code, code, String(error));
    return true;
  });

describe('SDK 1.x, 2025-11-25', { timeout: 240_000 }, () => {
  before(async () => {
    peer = await connectSdk();
  });
  after(() => peer?.close());

  test('initialize: the version, a session, core tasks, and nothing that was not asked for', () => {
    assert.equal(peer.transport.protocolVersion, VERSION);
    assert.match(peer.transport.sessionId, /^[\x21-\x7e]+$/);
    const capabilities = peer.client.getServerCapabilities();
    assert.deepEqual(capabilities.tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
    assert.deepEqual(capabilities.resources, { subscribe: true, listChanged: true });
    assert.ok(capabilities.logging && capabilities.completions && capabilities.tools && capabilities.prompts);
    assert.equal(capabilities.extensions, undefined);
    const [{ answer }] = peer.sent('initialize');
    assert.ok(!answer?.includes(OURS), answer);
    assert.ok(peer.client.getServerVersion().name.length > 0);
  });

  test('ping', async () => {
    assert.deepEqual(await peer.client.ping(), {});
  });

  test('tools/list says which tools run as tasks', async () => {
    const { tools } = await peer.client.listTools();
    const execution = Object.fromEntries(tools.map((tool) => [tool.name, tool.execution]));
    assert.deepEqual(execution.greet, { taskSupport: 'forbidden' });
    assert.deepEqual(execution.slow_compute, { taskSupport: 'optional' });
    assert.deepEqual(execution.failing_job, { taskSupport: 'required' });
  });

  // --- plain calls

  test('a plain call', async () => {
    assert.equal(text(await call('greet', { name: 'Ada' })), 'Hello, Ada!');
    assert.equal((await call('test_error_handling')).isError, true);
  });

  test('a plain call that takes long is held open', async () => {
    const result = await call('slow_compute', { seconds: 2, label: 'sdk-plain' });
    assert.notEqual(result.isError, true);
    assert.match(text(result), /sdk-plain/);
    assert.equal(result._meta?.[RELATED], undefined, 'a plain call has no task to name');
  });

  test('a plain call with progress', async () => {
    const steps = [];
    await call('test_tool_with_progress', {}, { onprogress: (progress) => steps.push(progress) });
    assert.deepEqual(steps.map(({ progress, total }) => [progress, total]), [[0, 100], [50, 100], [100, 100]]);
  });

  test('a plain call with log lines, from the level that was set on', async () => {
    const lines = () => peer.notifications.filter((n) => n.method === 'notifications/message');
    const before = lines().length;
    await peer.client.setLoggingLevel('error');
    await call('test_tool_with_logging');
    assert.equal(lines().length, before, 'info lines are below the level');
    await peer.client.setLoggingLevel('info');
    await call('test_tool_with_logging');
    assert.deepEqual(
      lines().slice(before).map(({ params }) => [params.level, params.data]),
      [['info', 'Tool execution started'], ['info', 'Tool processing data'], ['info', 'Tool execution completed']],
    );
  });

  test('a plain call that asks a person and a language model', async () => {
    peer.asked.length = 0;
    const elicited = await call('test_elicitation', { message: 'Who are you?' });
    assert.match(text(elicited), /^User response: action=accept/);
    assert.equal(peer.asked[0].message, 'Who are you?');
    assert.match(text(await call('test_sampling', { prompt: 'Say hello' })), /You said: Say hello/);
    assert.equal(text(await call('confirm_delete', { filename: 'sdk-plain.txt' })), 'Deleted sdk-plain.txt');
    assert.equal(peer.asked.length, 3);
    for (const params of peer.asked) assert.equal(params._meta?.[RELATED], undefined);
  });

  test('an abandoned call is cancelled, and its stream not resumed for ever', async () => {
    const abort = new AbortController();
    const running = call('slow_compute', { seconds: 60, label: 'sdk-abandoned' }, { signal: abort.signal });
    setTimeout(() => abort.abort(new Error('no longer needed')), 1_500);
    await assert.rejects(running);
    await until('notifications/cancelled', () => peer.sent('notifications/cancelled').some((entry) => entry.status === 202));
  });

  test('unknown tools, resources and tasks', async () => {
    await rejects(call('no_such_tool'), -32602);
    await rejects(peer.client.readResource({ uri: 'test://no-such-resource' }), -32002);
    for (const attempt of ['getTask', 'cancelTask']) await rejects(peer.tasks[attempt]('no-such-task'), -32602);
    await rejects(peer.tasks.getTaskResult('no-such-task', CallToolResultSchema), -32602);
  });

  // --- tasks

  test('a task is created and streamed to its result', async () => {
    const { messages, last, created, taskId } = await stream('slow_compute', { seconds: 2, label: 'sdk-task' }, { task: { ttl: 60_000 } });
    assert.equal(created.status, 'working');
    assert.ok(Number.isInteger(created.ttl) && created.ttl > 0);
    assert.ok(Number.isInteger(created.pollInterval) && created.pollInterval > 0);
    assert.ok(messages.some((m) => m.type === 'taskStatus' && m.task.status === 'working'));
    assert.equal(messages.at(-2).task.status, 'completed');
    assert.equal(last.type, 'result');
    assert.match(text(last.result), /sdk-task/);
    assert.deepEqual(last.result._meta[RELATED], { taskId });
    // It can be fetched again.
    assert.deepEqual(await peer.tasks.getTaskResult(taskId, CallToolResultSchema), last.result);
  });

  test('tasks/result waits for the end', async () => {
    const { taskId } = await start('slow_compute', { seconds: 2, label: 'sdk-wait' });
    const result = await peer.tasks.getTaskResult(taskId, CallToolResultSchema);
    assert.match(text(result), /sdk-wait/);
    assert.equal((await peer.tasks.getTask(taskId)).status, 'completed');
  });

  test('elicitation inside a task: asked once, with the task named', async () => {
    peer.asked.length = 0;
    const { messages, last, taskId } = await stream('confirm_delete', { filename: 'sdk-task.txt' });
    assert.equal(last.type, 'result', JSON.stringify(messages));
    assert.equal(text(last.result), 'Deleted sdk-task.txt');
    assert.equal(peer.asked.length, 1);
    assert.deepEqual(peer.asked[0]._meta[RELATED], { taskId });
  });

  test('two questions inside a task', async () => {
    peer.asked.length = 0;
    const { last } = await stream('multi_input', {});
    assert.equal(last.type, 'result');
    assert.equal(new Set(peer.asked.map((params) => params.message)).size, 2);
    assert.equal(peer.asked.length, 2, 'none is asked twice');
  });

  test('a declined question, and one that the client answers with an error', async () => {
    const other = await connectSdk({
      answer: ({ message }) => {
        if (message.includes('refused')) throw new Error('nobody is there');
        return { action: 'decline' };
      },
    });
    try {
      const plain = (name, args) => other.client.callTool({ name, arguments: args });
      assert.equal(text(await plain('confirm_delete', { filename: 'declined.txt' })), 'Kept declined.txt');
      assert.equal((await plain('confirm_delete', { filename: 'refused.txt' })).isError, true);
    } finally {
      await other.close();
    }
  });

  test('failure: isError makes a failed task, its result can still be read', async () => {
    const { last, taskId } = await stream('failing_job', {});
    assert.equal(last.type, 'error');
    const task = await peer.tasks.getTask(taskId);
    assert.equal(task.status, 'failed');
    assert.equal(task.statusMessage, 'The job failed, as it should.');
    const result = await peer.tasks.getTaskResult(taskId, CallToolResultSchema);
    assert.equal(result.isError, true);
    assert.equal(text(result), 'The job failed, as it should.');
  });

  test('failure: a JSON-RPC error is the answer to tasks/result', async () => {
    const { taskId } = await start('protocol_error_job', {});
    await assert.rejects(peer.tasks.getTaskResult(taskId, CallToolResultSchema), (error) => {
      assert.equal(error.code, -32603);
      assert.match(error.message, /broke the protocol/);
      return true;
    });
    assert.equal((await peer.tasks.getTask(taskId)).status, 'failed');
  });

  test('cancel, while tasks/result waits', async () => {
    const { taskId } = await start('slow_compute', { seconds: 60, label: 'sdk-cancel' });
    const waiting = rejects(peer.tasks.getTaskResult(taskId, CallToolResultSchema), -32603);
    await until('the wait', () => peer.sent('tasks/result').at(-1)?.status === 200);
    const cancelled = await peer.tasks.cancelTask(taskId);
    assert.equal(cancelled.taskId, taskId);
    assert.equal(cancelled.status, 'cancelled');
    await waiting;
    await rejects(peer.tasks.cancelTask(taskId), -32602);
    await rejects(peer.tasks.getTaskResult(taskId, CallToolResultSchema), -32603);
    assert.equal((await peer.tasks.getTask(taskId)).status, 'cancelled');
  });

  test('task and tool must fit', async () => {
    await rejects(start('greet', { name: 'Ada' }), -32601);
    const plain = { method: 'tools/call', params: { name: 'failing_job', arguments: {} } };
    await rejects(peer.client.request(plain, CallToolResultSchema), -32601);
    for (const ttl of [-1, 0, 1.5, 'soon']) await rejects(start('slow_compute', { seconds: 0 }, { ttl }), -32602);
  });

  test('list: every task once, newest first, in pages', async () => {
    const made = [];
    for (let i = 0; i < 60; i++) made.push((await start('slow_compute', { seconds: 0, label: `sdk-list-${i}` })).taskId);
    const listed = [];
    let cursor;
    let pages = 0;
    do {
      const page = await peer.tasks.listTasks(cursor);
      listed.push(...page.tasks);
      cursor = page.nextCursor;
      pages++;
    } while (cursor !== undefined && pages < 100);
    const ids = listed.map((task) => task.taskId);
    assert.equal(new Set(ids).size, ids.length);
    assert.deepEqual(ids.filter((id) => made.includes(id)), made.toReversed());
    assert.ok(pages > 1, 'one page was enough');
    for (const task of listed) assert.equal(task._meta, undefined);
    await rejects(peer.tasks.listTasks('no-such-cursor'), -32602);
  });

  test('another session of the same caller sees the task', async () => {
    const { taskId } = await start('slow_compute', { seconds: 60, label: 'sdk-other' });
    const other = await connectSdk();
    try {
      assert.equal((await other.tasks.getTask(taskId)).status, 'working');
      assert.equal((await other.tasks.cancelTask(taskId)).status, 'cancelled');
    } finally {
      await other.close();
    }
  });

  // --- the standing stream

  test('status notifications, without a poll', async () => {
    const [gets, results] = [peer.sent('tasks/get').length, peer.sent('tasks/result').length];
    const { taskId } = await start('slow_compute', { seconds: 1, label: 'sdk-push' });
    const done = await peer.notification('notifications/tasks/status', (p) => p.taskId === taskId && p.status === 'completed');
    assert.ok('ttl' in done.params && done.params.createdAt && done.params.lastUpdatedAt);
    assert.equal(done.params._meta?.[RELATED], undefined);
    const statuses = peer.notifications.filter((n) => n.params?.taskId === taskId).map((n) => n.params.status);
    assert.equal(statuses.filter((status) => TERMINAL.includes(status)).length, 1);
    assert.equal(statuses.at(-1), 'completed');
    assert.deepEqual([peer.sent('tasks/get').length, peer.sent('tasks/result').length], [gets, results]);
  });

  test('progress for the whole life of a task, under the token of its call', async () => {
    const steps = [];
    const { last } = await stream('test_tool_with_progress', {}, { onprogress: ({ progress }) => steps.push(progress) });
    assert.equal(last.type, 'result');
    await until('three steps', () => steps.length === 3);
    assert.deepEqual(steps, [0, 50, 100]);
  });

  test('a subscribed resource', async () => {
    const updates = () => peer.notifications.filter((n) => n.method === 'notifications/resources/updated' && n.params.uri === WATCHED);
    const read = async () => (await peer.client.readResource({ uri: WATCHED })).contents[0].text;
    const text = await read();
    await peer.client.subscribeResource({ uri: WATCHED });
    await call('test_trigger_resource_change');
    await until('the update', () => updates().length === 1);
    assert.notEqual(await read(), text);
    await peer.client.unsubscribeResource({ uri: WATCHED });
    await call('test_trigger_resource_change');
    // What comes behind the update on the same stream shows that there was none.
    const changes = () => peer.notifications.filter((n) => n.method === 'notifications/tools/list_changed').length;
    const before = changes();
    await call('test_trigger_tool_change');
    await until('tools/list_changed', () => changes() > before);
    assert.equal(updates().length, 1);
  });

  // --- resumption

  test('the server closes the stream of a call; the client comes back and gets the result', async () => {
    const before = peer.resumed().length;
    const result = await call('test_reconnection');
    assert.notEqual(result.isError, true);
    assert.equal(peer.resumed().length, before + 1);
    assert.equal(peer.resumed().at(-1).status, 200);
  });

  test('a client that went away resumes its call in another process, by session and event id', async () => {
    const first = await connectSdk();
    const { sessionId } = first.transport;
    let token;
    const running = first.client.callTool({ name: 'slow_compute', arguments: { seconds: 3, label: 'sdk-resume' } }, CallToolResultSchema, {
      onresumptiontoken: (id) => (token = id),
    });
    running.catch(() => {});
    await until('an event id', () => token !== undefined);
    await first.close();
    await assert.rejects(running);

    const second = await connectSdk({ sessionId });
    try {
      const result = await second.client.callTool({ name: 'slow_compute', arguments: {} }, CallToolResultSchema, { resumptionToken: token });
      assert.match(text(result), /sdk-resume/);
      assert.equal(second.sent('tools/call').length, 0, 'nothing was called again');
      assert.equal(second.sent('initialize').length, 0);
    } finally {
      await second.close();
    }
  });

  // --- the rest

  test('prompts, resources and completions', async () => {
    const { messages } = await peer.client.getPrompt({ name: 'test_prompt_with_arguments', arguments: { arg1: 'a', arg2: 'b' } });
    assert.match(messages[0].content.text, /arg1='a', arg2='b'/);
    assert.ok((await peer.client.listPrompts()).prompts.length > 0);
    assert.ok((await peer.client.listResources()).resources.some(({ uri }) => uri === WATCHED));
    assert.ok((await peer.client.listResourceTemplates()).resourceTemplates.length > 0);
    const ref = { type: 'ref/prompt', name: 'test_prompt_with_arguments' };
    const { completion } = await peer.client.complete({ ref, argument: { name: 'arg1', value: 'test' } });
    assert.ok(completion.values.includes('testing'));
  });

  test('a session that was ended is gone, its task is not', async () => {
    const other = await connectSdk();
    const params = { name: 'slow_compute', arguments: { seconds: 60, label: 'sdk-orphan' }, task: {} };
    const { task } = await other.client.request({ method: 'tools/call', params }, CreateTaskResultSchema);
    const { sessionId } = other.transport;
    await other.transport.terminateSession();
    await other.close();
    const ghost = await connectSdk({ sessionId });
    await rejects(ghost.client.ping(), 404);
    await ghost.close();
    assert.equal((await peer.tasks.cancelTask(task.taskId)).status, 'cancelled');
  });

  test('the client reported nothing in the background, and stopped coming back', async () => {
    assert.deepEqual(peer.errors.map(String), []);
    // Streams that ended without a result (errors, cancelled calls) make this client ask once more each; then it must rest.
    const settled = peer.resumed().length;
    await until('a quiet second', async () => {
      const before = peer.resumed().length;
      await new Promise((resolve) => setTimeout(resolve, 1_200));
      return peer.resumed().length === before;
    });
    assert.ok(peer.resumed().length <= settled + 3, 'streams that are over are resumed again and again');
  });
});
