// Status push: `subscriptions/listen` with taskIds, opened by the official client.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { answerForm, connect, SUBSCRIPTION_ID, text } from './harness.mjs';

let peer;

/** The acknowledgement as it came off the wire (the SDK's own view drops unknown filter keys). */
const rawAck = () => peer.inbound.findLast((m) => m.method === 'notifications/subscriptions/acknowledged');

describe('subscriptions/listen with taskIds', { timeout: 120_000 }, () => {
  before(async () => {
    peer = await connect({ onInputRequest: async (request) => answerForm(request.params) });
  });
  after(() => peer?.close());

  test('ext-tasks settles by push: 0 tasks/get sent', async () => {
    // ext-tasks polls after pollIntervalMs without news, so the work must be
    // shorter than that: learn the interval first, from a task we drop.
    const probe = await peer.session.callTool('slow_compute', { seconds: 60, label: 'ts-probe' });
    await probe.cancel();
    const { pollIntervalMs } = peer.rawResult('tools/call');
    const seconds = pollIntervalMs >= 2000 ? 1 : pollIntervalMs / 2000;

    const gets = peer.sent('tasks/get').length;
    const execution = await peer.session.callTool('slow_compute', { seconds, label: 'ts-push' });
    assert.equal(execution.kind, 'task');
    const { taskId } = execution.handle;
    const subscription = await peer.client.listen({ taskIds: [taskId] });
    try {
      assert.deepEqual(rawAck().params.notifications.taskIds, [taskId]);
      const { outcome, lastTask } = await execution.settle();
      assert.equal(outcome.status, 'completed');
      assert.ok(outcome.result.content.length > 0);
      assert.equal(lastTask.taskId, taskId);
      assert.equal(peer.sent('tasks/get').length - gets, 0, 'tasks/get requests sent');
    } finally {
      await subscription.close();
    }
  });

  test('official client alone: a 2 s task followed by push, 0 tasks/get sent', async () => {
    const gets = peer.sent('tasks/get').length;
    const execution = await peer.session.callTool('slow_compute', { seconds: 2, label: 'ts-push-long' });
    const { taskId } = execution.handle;
    await execution.detach();
    const subscription = await peer.client.listen({ taskIds: [taskId] });
    try {
      const listen = peer.sent('subscriptions/listen').at(-1);
      assert.match(listen.contentType, /^text\/event-stream/);
      const done = await peer.taskNotification((p) => p.taskId === taskId && p.status === 'completed');
      assert.equal(done.params.result.resultType, 'complete');
      assert.notEqual(done.params.result.isError, true);
      assert.ok(text(done.params.result).length > 0);
      const own = peer.inbound.filter((m) => m.params?._meta?.[SUBSCRIPTION_ID] === listen.message.id);
      assert.equal(own[0].method, 'notifications/subscriptions/acknowledged', 'the ack comes first');
      for (const message of own.slice(1)) {
        assert.equal(message.method, 'notifications/tasks');
        assert.equal(message.params.taskId, taskId);
      }
      assert.equal(peer.sent('tasks/get').length - gets, 0, 'tasks/get requests sent');
    } finally {
      await subscription.close();
    }
  });

  test('elicitations are pushed and answered', async () => {
    const execution = await peer.session.callTool('confirm_delete', { filename: 'ts-listen.txt' });
    const { taskId } = execution.handle;
    const subscription = await peer.client.listen({ taskIds: [taskId] });
    try {
      const { outcome } = await execution.settle();
      assert.equal(outcome.status, 'completed');
      const asked = await peer.taskNotification((p) => p.taskId === taskId && p.status === 'input_required');
      assert.equal(Object.keys(asked.params.inputRequests).length, 1);
      await peer.taskNotification((p) => p.taskId === taskId && p.status === 'completed');
    } finally {
      await subscription.close();
    }
  });

  test('failed and cancelled are pushed', async () => {
    const failing = await peer.session.callTool('protocol_error_job', {});
    const slow = await peer.session.callTool('slow_compute', { seconds: 60, label: 'ts-push-cancel' });
    const ids = [failing.handle.taskId, slow.handle.taskId];
    const subscription = await peer.client.listen({ taskIds: ids });
    try {
      assert.deepEqual([...rawAck().params.notifications.taskIds].sort(), [...ids].sort());
      await slow.cancel();
      const failed = await peer.taskNotification((p) => p.taskId === ids[0] && p.status === 'failed');
      assert.ok(Number.isInteger(failed.params.error.code));
      await peer.taskNotification((p) => p.taskId === ids[1] && p.status === 'cancelled');
      assert.equal((await failing.result()).status, 'failed');
    } finally {
      await subscription.close();
    }
  });

  test('a finished task is reported to a late listener', async () => {
    const execution = await peer.session.callTool('slow_compute', { seconds: 1, label: 'ts-late' });
    const { taskId } = execution.handle;
    await execution.settle();
    peer.notifications.length = 0;
    const subscription = await peer.client.listen({ taskIds: [taskId] });
    try {
      await peer.taskNotification((p) => p.taskId === taskId && p.status === 'completed', 5_000);
    } finally {
      await subscription.close();
    }
  });

  test('closing a subscription leaves the task running', async () => {
    const execution = await peer.session.callTool('slow_compute', { seconds: 2, label: 'ts-unlisten' });
    const subscription = await peer.client.listen({ taskIds: [execution.handle.taskId] });
    await subscription.close();
    assert.equal(await subscription.closed, 'local');
    assert.equal((await execution.settle()).outcome.status, 'completed');
  });

  test('two connections with the same listen id do not disturb each other', async () => {
    // The SDK numbers its listens from "listen:0" in every connection and, on
    // close, also POSTs notifications/cancelled naming that id.
    const [first, second] = [await connect(), await connect()];
    try {
      const execution = await first.session.callTool('slow_compute', { seconds: 2, label: 'ts-same-id' });
      const { taskId } = execution.handle;
      await execution.detach();
      const dropped = await first.client.listen({ taskIds: [taskId] });
      const kept = await second.client.listen({ taskIds: [taskId] });
      const ids = [first, second].map((p) => p.sent('subscriptions/listen')[0].message.id);
      assert.equal(ids[0], ids[1]);
      await dropped.close();
      await second.taskNotification((p) => p.taskId === taskId && p.status === 'completed');
      await kept.close();
    } finally {
      await first.close();
      await second.close();
    }
  });

  test('ext-tasks could read every notification', () => {
    assert.deepEqual(peer.errors, []);
  });
});
