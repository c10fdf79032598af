// What all drivers in JavaScript have in common: as py/driver.py.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

/** @type {{url: string, serve: string[], call_timeout: number | null}} */
export const options = JSON.parse(process.argv[2]);
/** Milliseconds after which a call is to be given up; undefined is the framework's own default. */
export const callTimeout = options.call_timeout === null ? undefined : options.call_timeout * 1000;

const require = createRequire(import.meta.url);
let asked = 0;

/** Fills in a form, as the user. */
export function answer(params) {
  asked += 1;
  return { action: 'accept', content: Object.fromEntries(Object.keys(params.requestedSchema.properties).map((key) => [key, 'eu'])) };
}

/** The text of content blocks. */
export const texts = (blocks) => blocks.map((block) => block.text).filter(Boolean).join('\n');

/** Where a package is that was installed, whatever it exports. */
export const folder = (name) => require.resolve.paths(name).map((path) => `${path}/${name}`).find((path) => has(`${path}/package.json`));

function has(file) {
  try {
    return require(file);
  } catch {
    return undefined;
  }
}

const say = (what) => process.stdout.write(`@@ ${JSON.stringify(what)}\n`);

/**
 * `elicits`: it can show questions. `gives_up`: it has a timeout, or after how many seconds it gives up by itself.
 * `connect` gives the names of its tools, a way to call one, and a way to close.
 */
export async function main(name, connect, { elicits = false, gives_up = true } = {}) {
  const { tools, call, close } = await connect();
  say({ package: name, version: has(`${folder(name)}/package.json`).version, elicits, gives_up, repeats: false });
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    if (request.list) say({ tools });
    else if (request.asked) say({ asked });
    else
      await call(request.call, request.arguments).then(
        (text) => say({ text }),
        (error) => {
          console.error(error);
          say({ error: String(error) });
        },
      );
  }
  await close();
  process.exit(0);
}
