// mcp-remote: a bridge from standard input and output to a server at a URL.
import { bridge } from './bridge.mjs';
import { folder, options } from './driver.mjs';

await bridge('mcp-remote', process.execPath, [`${folder('mcp-remote')}/dist/proxy.js`, options.url, '--transport', 'http-only']);
