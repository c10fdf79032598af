// Serves the files of the dashboard as they are on the disk, and passes everything else on to a server: for work on them without building.
//
//   node interop/dashboard/serve.js 8788 8787     # http://127.0.0.1:8788, with the data of the server on port 8787

import { readFile } from "node:fs/promises";
import http from "node:http";
import { extname, join } from "node:path";

const files = new URL("../../crates/taskwire/src/dashboard/", import.meta.url).pathname;
const kinds = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };
const [port, upstream] = process.argv.slice(2).map(Number);

http.createServer(async (request, response) => {
  const path = new URL(request.url, "http://localhost").pathname;
  const name = path === "/" ? "index.html" : /^\/dashboard\/([a-z]+\.[a-z]+)$/.exec(path)?.[1];
  const text = name && (await readFile(join(files, name)).catch(() => undefined));
  if (text) {
    // The rest of the headers are those of the server's own page, so that nothing works here that does not work there.
    const own = await fetch(`http://127.0.0.1:${upstream}/`, { method: "HEAD" }).catch(() => undefined);
    const policy = own?.headers.get("content-security-policy");
    response.writeHead(200, { "Content-Type": `${kinds[extname(name)]}; charset=utf-8`, ...(policy && { "Content-Security-Policy": policy }) });
    response.end(text);
    return;
  }
  const onward = http.request({ host: "127.0.0.1", port: upstream, path: request.url, method: request.method, headers: request.headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
    answer.on("error", () => response.destroy());
  });
  onward.on("error", () => response.destroy());
  response.on("close", () => onward.destroy());
  request.pipe(onward);
}).listen(port, "127.0.0.1");
