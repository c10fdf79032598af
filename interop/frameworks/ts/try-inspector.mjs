// The MCP Inspector's command line: a connection for each command.
import { execFile } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { callTimeout, folder, main, options, texts } from './driver.mjs';

const home = mkdtempSync(join(tmpdir(), 'inspector-'));
const env = { ...process.env, HOME: home, MCP_INSPECTOR_SECRET_STORE: 'memory' };
const program = `${folder('@modelcontextprotocol/inspector')}/clients/launcher/build/index.js`;

/** The result of one command. */
const cli = (method, ...args) =>
  new Promise((resolve, reject) => {
    const all = [program, '--cli', options.url, '--format', 'json', '--method', method, ...args];
    execFile(process.execPath, all, { env, timeout: callTimeout }, (error, stdout, stderr) => {
      if (error) reject(new Error(`${error.message} ${stdout} ${stderr}`));
      else resolve(JSON.parse(stdout));
    });
  });

await main('@modelcontextprotocol/inspector', async () => {
  const listed = await cli('tools/list');
  return {
    tools: (listed.result ?? listed).tools.map((tool) => tool.name),
    call: async (name, args) => {
      const toolArgs = Object.entries(args).flatMap(([key, value]) => ['--tool-arg', `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`]);
      const called = await cli('tools/call', '--tool-name', name, ...toolArgs);
      return texts((called.result ?? called).content);
    },
    close: async () => {},
  };
});
