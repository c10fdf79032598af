// supergateway: a bridge from standard input and output to a server at a URL. It answers questions of the server with `Method not found` by itself,
// so its client had better not say that it can be asked.
import { bridge } from './bridge.mjs';
import { folder, options } from './driver.mjs';

await bridge('supergateway', process.execPath, [`${folder('supergateway')}/dist/index.js`, '--streamableHttp', options.url], { elicits: false });
