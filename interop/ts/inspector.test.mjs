// The MCP Inspector's command lines in their default era, 2025-11-25: `inspector --cli` (one connection per command)
// and `mcpdo` (commands on a connection that a background process keeps).
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { text, url } from './harness.mjs';
import { RELATED, until, VERSION } from './legacy.mjs';

const clients = join(dirname(createRequire(import.meta.url).resolve('@modelcontextprotocol/inspector/package.json')), 'clients');
let home;
let env;

/** Runs a program of the Inspector; its output is JSON. */
function run(program, args) {
  return new Promise((resolve) => {
    execFile(process.execPath, [join(clients, program), ...args], { env, timeout: 60_000 }, (error, stdout, stderr) => {
      const lines = [stdout, ...stderr.split('\n')];
      const json = lines.flatMap((line) => {
        try {
          return [JSON.parse(line)];
        } catch {
          return [];
        }
      });
      resolve({ code: error ? error.code : 0, json: json[0], stdout, stderr });
    });
  });
}

const cli = (method, ...args) => run('launcher/build/index.js', ['--cli', url, '--format', 'json', '--method', method, ...args]);
const mcpdo = (...args) => run('mcpdo/build/mcp-bin.js', ['--format', 'json', ...args]);

/** The result of a command that must succeed. */
async function ok(running) {
  const { code, json, stdout, stderr } = await running;
  assert.equal(code, 0, `${stdout}\n${stderr}`);
  return json.result ?? json;
}

/** The error of a command that must fail. */
async function error(running) {
  const { code, json, stdout, stderr } = await running;
  assert.notEqual(code, 0, stdout);
  assert.ok(json?.error, `${stdout}\n${stderr}`);
  return json.error;
}

before(async () => {
  home = await mkdtemp(join(tmpdir(), 'inspector-'));
  env = {
    ...process.env,
    HOME: home,
    MCP_INSPECTOR_SECRET_STORE: 'memory',
    MCP_INSPECTOR_DAEMON_DIR: join(home, 'daemon'),
    MCP_INSPECTOR_DAEMON_TOKEN: randomBytes(32).toString('base64url'),
  };
});
after(() => rm(home, { recursive: true, force: true }));

describe('inspector --cli', { timeout: 120_000 }, () => {
  test('initialize', async () => {
    const result = await ok(cli('initialize'));
    assert.equal(result.protocolVersion, VERSION);
    assert.deepEqual(result.capabilities.tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
  });

  test('tools/list', async () => {
    const { tools } = await ok(cli('tools/list'));
    const execution = Object.fromEntries(tools.map((tool) => [tool.name, tool.execution?.taskSupport]));
    assert.equal(execution.greet, 'forbidden');
    assert.equal(execution.slow_compute, 'optional');
    assert.equal(execution.failing_job, 'required');
  });

  test('tools/call', async () => {
    assert.equal(text(await ok(cli('tools/call', '--tool-name', 'greet', '--tool-arg', 'name=Ada'))), 'Hello, Ada!');
  });

  test('tools/call of a tool that takes long is held open', async () => {
    const result = await ok(cli('tools/call', '--tool-name', 'slow_compute', '--tool-arg', 'seconds=2', 'label=inspector'));
    assert.match(text(result), /inspector/);
  });

  test('tools/call of a tool that has to be a task', async () => {
    assert.match((await error(cli('tools/call', '--tool-name', 'failing_job'))).message, /The job failed, as it should\./);
  });

  test('tools/call of a tool that asks, by a client that cannot be asked', async () => {
    const result = await ok(cli('tools/call', '--tool-name', 'confirm_delete', '--tool-arg', 'filename=inspector.txt'));
    assert.match(text(result), /Delete inspector\.txt\?[^]*`task_answer`/);
  });

  test('resources, prompts and logging', async () => {
    const { resources } = await ok(cli('resources/list'));
    assert.ok(resources.some(({ uri }) => uri === 'test://watched-resource'));
    const { contents } = await ok(cli('resources/read', '--uri', 'test://static-text'));
    assert.ok(contents[0].text.length > 0);
    assert.ok((await ok(cli('resources/templates/list'))).resourceTemplates.length > 0);
    const args = ['--prompt-name', 'test_prompt_with_arguments', '--prompt-args', 'arg1=a', 'arg2=b'];
    assert.match((await ok(cli('prompts/get', ...args))).messages[0].content.text, /arg1='a', arg2='b'/);
    assert.deepEqual(await ok(cli('logging/setLevel', '--log-level', 'warning')), {});
  });

  test('an unknown resource is refused', async () => {
    await error(cli('resources/read', '--uri', 'test://no-such-resource'));
  });
});

describe('mcpdo', { timeout: 120_000 }, () => {
  const on = (name, ...args) => mcpdo('--connection', name, ...args);

  before(async () => {
    for (const name of ['a', 'b']) assert.equal((await ok(on(name, 'connect', url))).protocolEra, 'legacy');
  });
  after(() => mcpdo('daemon', 'stop'));

  test('a call as a task', async () => {
    const result = await ok(on('a', 'tools/call', 'slow_compute', 'seconds:=1', 'label:=mcpdo', '--task'));
    assert.match(text(result), /mcpdo/);
    const { taskId } = result._meta[RELATED];
    assert.equal((await ok(on('b', 'tasks/get', taskId))).task.status, 'completed');
    assert.deepEqual((await ok(on('b', 'tasks/result', taskId))).content, result.content);
  });

  test('a question inside a task', async () => {
    const { elicitationPending } = await ok(on('a', 'tools/call', 'confirm_delete', 'filename:=mcpdo.txt', '--task'));
    assert.equal(elicitationPending.message, 'Delete mcpdo.txt?');
    const result = await ok(on('a', 'elicitation/respond', elicitationPending.elicitationId, 'confirm:=true'));
    assert.equal(text(result), 'Deleted mcpdo.txt');
  });

  test('list and cancel', async () => {
    const list = async () => (await ok(on('b', 'tasks/list'))).tasks;
    const known = new Set((await list()).map(({ taskId }) => taskId));
    const running = on('a', 'tools/call', 'slow_compute', 'seconds:=60', 'label:=mcpdo-cancel', '--task');
    const task = await until('the task in the list', async () => (await list()).find(({ taskId }) => !known.has(taskId)));
    assert.equal(task.status, 'working');
    assert.equal((await ok(on('b', 'tasks/cancel', task.taskId))).cancelled, true);
    assert.match((await error(running)).message, /cancel/i);
    await error(on('b', 'tasks/cancel', task.taskId));
  });
});
