// @modelcontextprotocol/ext-tasks in its v1 mode, on @modelcontextprotocol/client, which opens with `initialize` by default.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { resultFromTaskOutcome } from '@modelcontextprotocol/ext-tasks/client';
import { answerForm, text, untilStatus } from './harness.mjs';
import { connectExtTasks, VERSION } from './legacy.mjs';

const prefer = { task: { preference: 'prefer' } };
const elicited = [];
let peer;

const asTask = async (name, args, options = prefer) => {
  const execution = await peer.session.callTool(name, args, options);
  assert.equal(execution.kind, 'task');
  return execution;
};

describe('ext-tasks, v1', { timeout: 120_000 }, () => {
  before(async () => {
    peer = await connectExtTasks({
      onInputRequest: async (request, context) => {
        elicited.push({ request, context });
        return answerForm(request.params);
      },
    });
  });
  after(() => peer?.close());

  test('connects in the legacy era and sees everything that tasks can do there', () => {
    assert.equal(peer.client.getProtocolEra(), 'legacy');
    assert.equal(peer.client.getNegotiatedProtocolVersion(), VERSION);
    assert.deepEqual(peer.session.capabilities, {
      inventory: 'server-list',
      execution: true,
      cancellation: true,
      inputResponses: false,
      requestedRetention: true,
    });
  });

  test('greet cannot be a task', async () => {
    const execution = await peer.session.callTool('greet', { name: 'Ada' }, prefer);
    assert.equal(execution.kind, 'immediate');
    assert.equal(text(resultFromTaskOutcome(await execution.result())), 'Hello, Ada!');
  });

  test('slow_compute is held open for a caller that does not prefer tasks', async () => {
    const execution = await peer.session.callTool('slow_compute', { seconds: 2, label: 'v1-plain' });
    assert.equal(execution.kind, 'immediate');
    assert.match(text(resultFromTaskOutcome(await execution.result())), /v1-plain/);
  });

  test('slow_compute as a task, with a time to keep it', async () => {
    const execution = await asTask('slow_compute', { seconds: 2, label: 'v1-task' }, { task: { preference: 'require', retentionMs: 60_000 } });
    assert.deepEqual(peer.sent('tools/call').at(-1).message.params.task, { ttl: 60_000 });
    const seen = [];
    for await (const event of execution.updates()) seen.push(event);
    assert.equal(seen[0].task.status, 'working');
    assert.ok(seen[0].task.retentionMs > 0);
    const { outcome } = seen.at(-1);
    assert.equal(outcome.status, 'completed');
    assert.match(text(outcome.result), /v1-task/);
    assert.equal(outcome.task.status, 'completed');
  });

  test('a task that is told of by notifications is never polled', async () => {
    // ext-tasks polls after pollInterval without news, so the work must be
    // shorter than that: learn the interval first, from a task we drop.
    const probe = await asTask('slow_compute', { seconds: 60, label: 'v1-probe' });
    await probe.cancel();
    const { pollInterval } = await peer.session.task(probe.handle.taskId).snapshot();
    const gets = peer.sent('tasks/get').length;
    const execution = await asTask('slow_compute', { seconds: pollInterval / 2000, label: 'v1-push' });
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'completed');
    assert.equal(peer.sent('tasks/get').length - gets, 0, 'tasks/get requests sent');
  });

  test('confirm_delete: asked inside the task, which this client never waits for with tasks/result', async () => {
    elicited.length = 0;
    const results = peer.sent('tasks/result').length;
    const execution = await asTask('confirm_delete', { filename: 'v1.txt' });
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'completed');
    assert.equal(text(outcome.result), 'Deleted v1.txt');
    assert.equal(elicited.length, 1);
    assert.equal(elicited[0].request.kind, 'elicitation');
    assert.equal(elicited[0].context.scope, 'task');
    assert.equal(elicited[0].context.taskId, execution.handle.taskId);
    assert.equal(peer.sent('tasks/result').length - results, 1, 'only for the result');
  });

  test('multi_input: two questions, none asked twice', async () => {
    elicited.length = 0;
    const { outcome } = await (await asTask('multi_input', {})).settle();
    assert.equal(outcome.status, 'completed');
    assert.equal(new Set(elicited.map(({ request }) => request.params.message)).size, 2);
    assert.equal(elicited.length, 2);
  });

  test('a plain call asks on its own stream', async () => {
    elicited.length = 0;
    const execution = await peer.session.callTool('confirm_delete', { filename: 'v1-plain.txt' });
    assert.equal(text(resultFromTaskOutcome(await execution.result())), 'Deleted v1-plain.txt');
    assert.deepEqual(elicited.map(({ context }) => context.scope), ['request']);
  });

  test('failing_job has to be a task, and fails with what it said', async () => {
    const { outcome } = await (await asTask('failing_job', {}, {})).settle();
    assert.equal(outcome.status, 'failed');
    assert.equal(outcome.error.message, 'The job failed, as it should.');
    assert.equal(outcome.task.status, 'failed');
  });

  test('protocol_error_job fails with its message', async () => {
    const { outcome } = await (await asTask('protocol_error_job', {})).settle();
    assert.equal(outcome.status, 'failed');
    assert.match(outcome.error.message, /broke the protocol/);
  });

  test('cancel stops a running slow_compute', async () => {
    const execution = await asTask('slow_compute', { seconds: 60, label: 'v1-cancel' });
    await execution.cancel();
    assert.equal((await execution.result()).status, 'cancelled');
    const { taskId } = execution.handle;
    assert.equal((await untilStatus(peer.session.task(taskId), 'cancelled')).status, 'cancelled');
    await assert.rejects(peer.session.cancelTask(taskId), (error) => error.code === -32602);
  });

  test('the server lists the tasks, in pages', async () => {
    const execution = await asTask('slow_compute', { seconds: 60, label: 'v1-list' });
    const { taskId } = execution.handle;
    const [newest] = (await peer.session.listTasks()).tasks;
    assert.equal(newest.taskId, taskId);
    assert.equal(newest.status, 'working');
    const ids = [];
    let cursor;
    do {
      const page = await peer.session.listTasks(cursor);
      ids.push(...page.tasks.map((task) => task.taskId));
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    assert.equal(new Set(ids).size, ids.length);
    await execution.cancel();
  });

  test('a serialised reference is picked up by another connection', async () => {
    const execution = await asTask('slow_compute', { seconds: 2, label: 'v1-resume' });
    let stored;
    await execution.handoff((reference) => {
      stored = JSON.stringify(reference);
    });
    const other = await connectExtTasks();
    try {
      const { outcome } = await (await other.session.resumeTask(JSON.parse(stored))).settle();
      assert.equal(outcome.status, 'completed');
      assert.match(text(outcome.result), /v1-resume/);
      assert.equal(other.sent('tools/call').length, 0);
    } finally {
      await other.close();
    }
  });

  test('the server closes the stream of a call; the client comes back and gets the result', async () => {
    const before = peer.resumed().length;
    const result = await peer.client.callTool({ name: 'test_reconnection', arguments: {} });
    assert.notEqual(result.isError, true);
    assert.equal(peer.resumed().length, before + 1);
  });

  test('an unknown task is -32602', async () => {
    await assert.rejects(peer.session.task('no-such-task').snapshot(), (error) => error.code === -32602);
  });

  test('neither ext-tasks nor the client reported anything in the background', () => {
    // A poll that the client gives up when a status is pushed may have been answered already: nobody's fault.
    const late = /^Error: Received a response for an unknown message ID: .*"result":\{"taskId"/;
    assert.deepEqual(peer.errors.map(String).filter((error) => !late.test(error)), []);
  });
});
