// @modelcontextprotocol/ext-tasks on @modelcontextprotocol/client, 2026-07-28, polling.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { answerForm, connect, OURS, PROTOCOL_VERSION, TASKS, text, untilStatus } from './harness.mjs';

const elicited = [];
let peer;

describe('ext-tasks, polling', { timeout: 120_000 }, () => {
  before(async () => {
    peer = await connect({
      onInputRequest: async (request, context) => {
        elicited.push({ request, context });
        return answerForm(request.params);
      },
    });
  });
  after(() => peer?.close());

  test('connects in the modern era and sees the extension', () => {
    assert.equal(peer.client.getNegotiatedProtocolVersion(), PROTOCOL_VERSION);
    assert.equal(peer.client.getProtocolEra(), 'modern');
    assert.deepEqual(peer.client.getServerCapabilities().extensions[TASKS], {});
    assert.equal(peer.session.capabilities.execution, true);
    assert.equal(peer.sent('initialize').length, 0);
  });

  test('lists the fixture tools', async () => {
    const names = (await peer.client.listTools()).tools.map((tool) => tool.name);
    for (const name of ['greet', 'slow_compute', 'failing_job', 'protocol_error_job', 'confirm_delete', 'multi_input'])
      assert.ok(names.includes(name), `${name} is missing from ${names}`);
  });

  test('greet answers at once', async () => {
    const execution = await peer.session.callTool('greet', { name: 'Ada' });
    assert.equal(execution.kind, 'immediate');
    assert.equal(text(resultFromTaskOutcome(await execution.result())), 'Hello, Ada!');
  });

  test('slow_compute becomes a task and is polled to its result', async () => {
    const gets = peer.sent('tasks/get').length;
    const execution = await peer.session.callTool('slow_compute', { seconds: 1, label: 'ts-poll' });
    assert.equal(execution.kind, 'task');
    const { outcome, lastTask } = await execution.settle();
    assert.equal(outcome.status, 'completed');
    assert.notEqual(outcome.result.isError, true);
    assert.ok(outcome.result.content.length > 0);
    assert.equal(lastTask.status, 'completed');
    assert.ok(peer.sent('tasks/get').length > gets, 'it must have polled');
  });

  test('create result and tasks/* requests have the agreed shape', () => {
    const created = peer.inbound.map((m) => m.result).find((r) => r?.resultType === 'task');
    assert.equal(created.task, undefined);
    assert.ok('ttlMs' in created);
    assert.ok(Number.isInteger(created.pollIntervalMs) && created.pollIntervalMs > 0);
    for (const entry of peer.wire.filter((e) => e.message?.method?.startsWith('tasks/'))) {
      assert.equal(entry.headers.get('mcp-method'), entry.message.method);
      assert.equal(entry.headers.get('mcp-name'), entry.message.params.taskId);
      assert.equal(entry.headers.get('mcp-protocol-version'), PROTOCOL_VERSION);
      assert.equal(entry.status, 200);
    }
  });

  test('confirm_delete: one elicitation answered through tasks/update', async () => {
    elicited.length = 0;
    const execution = await peer.session.callTool('confirm_delete', { filename: 'ts-interop.txt' });
    assert.equal(execution.kind, 'task');
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'completed');
    assert.notEqual(outcome.result.isError, true);
    assert.equal(elicited.length, 1);
    assert.equal(elicited[0].request.kind, 'elicitation');
    assert.equal(elicited[0].context.scope, 'task');
    assert.deepEqual(peer.rawResult('tasks/update').resultType, 'complete');
  });

  test('multi_input: two keys open at once, answered in one update', async () => {
    elicited.length = 0;
    const updates = peer.sent('tasks/update').length;
    const execution = await peer.session.callTool('multi_input', {});
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'completed');
    assert.equal(new Set(elicited.map((e) => e.context.inputId)).size, 2);
    assert.equal(elicited.length, 2, 'no key may be asked twice');
    const sent = peer.sent('tasks/update').slice(updates);
    assert.ok(sent.length === 1 || sent.length === 2);
  });

  test('multi_input: answered one by one, each update visible at once', async () => {
    const execution = await peer.session.callTool('multi_input', {});
    const { taskId } = execution.handle;
    await execution.detach();
    const task = peer.session.task(taskId);
    const open = await (async () => {
      for (let i = 0; i < 50; i++) {
        const view = await untilStatus(task, 'input_required');
        if (Object.keys(view.raw.inputRequests).length === 2) return view.raw.inputRequests;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
      throw new Error('two keys were never open at once');
    })();
    const [first, second] = Object.keys(open);
    await task.update({ [first]: answerForm(open[first].params) });
    const between = await task.snapshot();
    assert.equal(between.status, 'input_required');
    assert.deepEqual(Object.keys(between.raw.inputRequests), [second]);
    await task.update({ [second]: answerForm(open[second].params) });
    const outcome = await task.result();
    assert.equal(outcome.status, 'completed');
  });

  test('cancel stops a running slow_compute', async () => {
    const execution = await peer.session.callTool('slow_compute', { seconds: 60, label: 'ts-cancel' });
    assert.equal(execution.kind, 'task');
    await execution.cancel();
    assert.equal((await execution.result()).status, 'cancelled');
    const view = await untilStatus(peer.session.task(execution.handle.taskId), 'cancelled');
    assert.equal(view.status, 'cancelled');
    // A second cancel of a finished task is acknowledged too.
    await peer.session.cancelTask(execution.handle.taskId);
  });

  test('failing_job completes with isError', async () => {
    const { outcome } = await (await peer.session.callTool('failing_job', {})).settle();
    assert.equal(outcome.status, 'completed');
    assert.equal(outcome.result.isError, true);
  });

  test('protocol_error_job fails with a JSON-RPC error', async () => {
    const { outcome, lastTask } = await (await peer.session.callTool('protocol_error_job', {})).settle();
    assert.equal(outcome.status, 'failed');
    assert.equal(lastTask.status, 'failed');
    assert.ok(Number.isInteger(outcome.error.code));
    assert.ok(outcome.error.message.length > 0);
  });

  test('a serialised reference is picked up by another connection', async () => {
    const execution = await peer.session.callTool('slow_compute', { seconds: 2, label: 'ts-resume' });
    let stored;
    await execution.handoff((reference) => {
      stored = JSON.stringify(reference);
    });
    const other = await connect();
    try {
      const resumed = await other.session.resumeTask(JSON.parse(stored));
      const { outcome } = await resumed.settle();
      assert.equal(outcome.status, 'completed');
      assert.equal(other.sent('tools/call').length, 0);
    } finally {
      await other.close();
    }
  });

  test('an unknown task is -32602', async () => {
    await assert.rejects(peer.session.task('no-such-task').snapshot(), (error) => error.code === -32602);
  });

  test("nothing of Taskwire's own extensions is shown to a client that did not ask", async () => {
    await peer.client.listTools();
    for (const method of ['server/discover', 'tools/list', 'tools/call', 'tasks/get']) {
      const answers = peer.sent(method).flatMap((entry) => entry.answer ?? []);
      assert.ok(answers.length > 0, `${method} was never answered`);
      for (const answer of answers) assert.ok(!answer.includes(OURS), `${method}: ${answer}`);
    }
  });

  test('ext-tasks reported nothing in the background', () => {
    assert.deepEqual(peer.errors, []);
  });
});
