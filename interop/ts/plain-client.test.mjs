// The official client without the Tasks extension: calls stay synchronous.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { connect, text } from './harness.mjs';

let peer;

describe('official client, no tasks declared', { timeout: 60_000 }, () => {
  before(async () => {
    peer = await connect({ tasks: false });
  });
  after(() => peer?.close());

  test('greet', async () => {
    assert.equal(text(await peer.client.callTool({ name: 'greet', arguments: { name: 'Bob' } })), 'Hello, Bob!');
  });

  test('slow_compute is served synchronously', async () => {
    const started = Date.now();
    const result = await peer.client.callTool({ name: 'slow_compute', arguments: { seconds: 1, label: 'ts-sync' } });
    assert.notEqual(result.isError, true);
    assert.ok(result.content.length > 0);
    assert.ok(Date.now() - started >= 900);
    assert.equal(peer.sent('tasks/get').length, 0);
  });

  test('failing_job needs tasks: -32021 naming the extension', async () => {
    await assert.rejects(peer.client.callTool({ name: 'failing_job', arguments: {} }), (error) => {
      assert.equal(error.code, -32021);
      assert.deepEqual(error.data.requiredCapabilities.extensions['io.modelcontextprotocol/tasks'], {});
      return true;
    });
    assert.equal(peer.sent('tools/call').at(-1).status, 400);
  });

  test('listen with taskIds needs tasks: -32021', async () => {
    await assert.rejects(peer.client.listen({ taskIds: ['x'] }), (error) => error.code === -32021);
  });

  test('an unknown tool is -32602', async () => {
    await assert.rejects(peer.client.callTool({ name: 'no_such_tool', arguments: {} }), (e) => e.code === -32602);
  });
});
