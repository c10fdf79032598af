// `taskwire serve` as the resource server of a real authorization server, and `taskwire call` as its client.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createWriteStream, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { AuthorizationServer, browse } from './provider.mjs';

const program = process.env.TASKWIRE_BIN;
const logs = process.env.LOG_DIR ?? tmpdir();
if (!program) throw new Error('set TASKWIRE_BIN');

const VERSION = 'io.modelcontextprotocol/protocolVersion';
const CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities';
/** For how long the server asks for no keys again, and a bit more. */
const PAUSE = 31_000;

const scratch = mkdtempSync(path.join(tmpdir(), 'taskwire-authorization-'));
const cleanUp = [];

after(async () => {
  for (const stop of cleanUp.reverse()) await stop();
  rmSync(scratch, { recursive: true, force: true });
});

async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts a server with these lines about its issuer; what it logs is in `log`. */
async function serve(name, issuer) {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}/mcp`;
  const file = path.join(scratch, `${name}.toml`);
  const script = 'for n in $(seq "$1"); do echo "line $n"; sleep 0.5; done';
  writeFileSync(
    file,
    `listen = "127.0.0.1:${port}"
data = "${path.join(scratch, name)}"

[auth]
resource = "${url}"
leeway = "0s"
scopes = { "*" = ["mcp"], "tools/call" = ["call"], "tool:deploy" = ["deploy"] }

[[auth.issuers]]
${issuer}

[[tool]]
name = "count"
command = ["sh", "-c", '${script}', "count", "{to}"]
input = { to = { type = "integer" } }

[[tool]]
name = "deploy"
command = ["echo", "deployed"]
`,
  );
  const log = [];
  const child = spawn(program, ['serve', file], { env: { ...process.env, RUST_LOG: 'taskwire=debug' } });
  const kept = createWriteStream(path.join(logs, `${name}.log`));
  readline.createInterface({ input: child.stderr }).on('line', (line) => {
    log.push(line);
    kept.write(`${line}\n`);
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  cleanUp.push(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  for (let n = 0; n < 100; n += 1) {
    if (child.exitCode !== null) break;
    const ready = await fetch(`http://127.0.0.1:${port}/readyz`).catch(() => null);
    if (ready?.ok) return { url, log };
    await sleep(100);
  }
  throw new Error(`the server did not get ready:\n${log.join('\n')}`);
}

/** A user with a directory of their own, which the program keeps their sign-ins in. */
class User {
  constructor(name) {
    this.home = path.join(scratch, `user-${name}`);
    mkdirSync(this.home);
    this.signIns = 0;
  }

  /** Runs the program. Whatever it wants opened in a browser is opened. */
  run(...args) {
    const env = { ...process.env, HOME: this.home };
    for (const name of ['TASKWIRE_TOKEN', 'XDG_CONFIG_HOME', 'XDG_STATE_HOME', 'XDG_DATA_HOME', 'XDG_RUNTIME_DIR']) delete env[name];
    const child = spawn(program, args, { env });
    const [lines, words] = [[], []];
    readline.createInterface({ input: child.stdout }).on('line', (line) => lines.push(line));
    readline.createInterface({ input: child.stderr }).on('line', (line) => {
      words.push(line);
      if (/^http:\/\/127\.0\.0\.1:\d+\/auth\?/.test(line)) {
        this.signIns += 1;
        browse(line).catch((error) => words.push(String(error)));
      }
    });
    const ended = new Promise((resolve) => child.on('close', (code) => resolve({ code, lines, words: words.join('\n') })));
    return { lines, ended };
  }

  call(server, ...args) {
    return this.run('call', '--oauth', server.url, ...args);
  }
}

function counted(to) {
  return Array.from({ length: to }, (_, n) => `line ${n + 1}`);
}

async function until(what, condition, seconds = 30) {
  for (let n = 0; n < seconds * 20; n += 1) {
    if (condition()) return;
    await sleep(50);
  }
  throw new Error(`${what} did not happen within ${seconds} seconds`);
}

/** Lists the tools with this token: the status, and the challenge. */
async function listed(server, token) {
  const params = { _meta: { [VERSION]: '2026-07-28', [CAPABILITIES]: {} } };
  const headers = {
    accept: 'application/json, text/event-stream',
    'content-type': 'application/json',
    'mcp-method': 'tools/list',
    'mcp-protocol-version': '2026-07-28',
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
  };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list', params });
  const response = await fetch(server.url, { method: 'POST', headers, body });
  return { status: response.status, challenge: response.headers.get('www-authenticate') ?? '' };
}

describe('a real authorization server', { concurrency: 1 }, () => {
  let issuer;
  let server;

  before(async () => {
    issuer = await AuthorizationServer.start();
    cleanUp.push(() => issuer.stop());
    server = await serve('keys', `url = "${issuer.url}"\nalgorithms = ["RS256"]`);
  });

  test('who has no token is told where to get one', async () => {
    const { status, challenge } = await listed(server);
    assert.equal(status, 401);
    const where = /^Bearer resource_metadata="([^"]+)", scope="call mcp"$/.exec(challenge)?.[1];
    assert.ok(where, challenge);
    const metadata = await (await fetch(where)).json();
    assert.equal(metadata.resource, server.url);
    assert.deepEqual(metadata.authorization_servers, [issuer.url]);
    assert.deepEqual(metadata.scopes_supported, ['call', 'deploy', 'mcp']);
  });

  test('a person signs in once, and their sign-in is used from then on', async () => {
    const ada = new User('once');
    for (const era of ['modern', 'legacy']) {
      const { code, lines, words } = await ada.call(server, 'count', 'to=2', '--era', era).ended;
      assert.equal(code, 0, words);
      assert.deepEqual(lines, counted(2), words);
    }
    assert.equal(ada.signIns, 1);
    assert.deepEqual(issuer.consents.at(-1)?.split(' ').filter((scope) => scope !== 'offline_access').sort(), ['call', 'mcp']);
  });

  test('a missing scope is asked for with all others at once', async () => {
    const ada = new User('step-up');
    const first = await ada.call(server, 'count', 'to=1').ended;
    assert.equal(first.code, 0, first.words);
    const { code, lines, words } = await ada.call(server, 'deploy').ended;
    assert.equal(code, 0, words);
    assert.deepEqual(lines, ['deployed']);
    assert.equal(ada.signIns, 2);
    const asked = issuer.consents.at(-1).split(' ');
    for (const scope of ['call', 'deploy', 'mcp']) assert.ok(asked.includes(scope), String(asked));
  });

  for (const era of ['modern', 'legacy']) {
    test(`a token that expires in mid-stream leaves no gap (${era})`, async () => {
      const ada = new User(`expiry-${era}`);
      const [renewals, logged] = [issuer.renewals, server.log.length];
      issuer.ttl = 5;
      try {
        const { code, lines, words } = await ada.call(server, 'count', 'to=30', '--era', era).ended;
        assert.equal(code, 0, words);
        assert.deepEqual(lines, counted(30), words);
      } finally {
        issuer.ttl = 3600;
      }
      assert.equal(ada.signIns, 1, 'nobody is asked again');
      assert.ok(issuer.renewals > renewals, 'the token was renewed');
      assert.ok(server.log.slice(logged).some((line) => line.includes('a token has expired')), 'a stream ended for that');
    });
  }

  test('keys change in mid-stream', async () => {
    await sleep(Math.max(0, issuer.keysAskedAt + PAUSE - Date.now()));
    const [ada, bob] = [new User('rotation'), new User('rotated')];
    const signedIn = await ada.call(server, 'count', 'to=1').ended;
    assert.equal(signedIn.code, 0, signedIn.words);
    const asked = issuer.keysAskedAt;
    const long = ada.call(server, 'count', 'to=20');
    await until('output', () => long.lines.length >= 3);
    issuer.rotate();
    const { code, lines, words } = await bob.call(server, 'count', 'to=2').ended;
    assert.equal(code, 0, words);
    assert.deepEqual(lines, counted(2), words);
    assert.ok(issuer.keysAskedAt > asked, 'the server fetched the new keys');
    const rest = await long.ended;
    assert.equal(rest.code, 0, rest.words);
    assert.deepEqual(rest.lines, counted(20), rest.words);
  });

  test('a token with anything wrong is refused', async () => {
    assert.equal((await listed(server, await issuer.tokenFor(server.url))).status, 200);
    const refused = async (token, why) => {
      const { status, challenge } = await listed(server, token);
      assert.equal(status, 401, why);
      assert.match(challenge, /error="invalid_token"/);
      assert.ok(challenge.includes(why), challenge);
    };
    await refused(await issuer.tokenFor('http://127.0.0.1:9/other'), 'audience');
    const stranger = await AuthorizationServer.start();
    cleanUp.push(() => stranger.stop());
    await refused(await stranger.tokenFor(server.url), 'issuer');
    issuer.algorithm = 'ES256';
    await refused(await issuer.tokenFor(server.url), 'algorithm');
    issuer.algorithm = 'RS256';
    issuer.ttl = 1;
    const short = await issuer.tokenFor(server.url);
    issuer.ttl = 3600;
    await sleep(2_000);
    await refused(short, 'expired');
    const { status, challenge } = await listed(server, await issuer.tokenFor(server.url, 'call'));
    assert.equal(status, 403);
    assert.match(challenge, /scope="mcp", error="insufficient_scope"/);
  });

  test('an opaque token is worth what its issuer says', async () => {
    const credentials = 'client_id = "robot", client_secret = "robot-secret"';
    const asking = await serve(
      'introspection',
      `url = "${issuer.url}"\ncaller_claim = "client_id"\nintrospection = { url = "${issuer.url}/token/introspection", ${credentials} }`,
    );
    issuer.format = 'opaque';
    const token = await issuer.tokenFor(asking.url);
    assert.ok(!token.includes('.'), 'it cannot be read');
    const foreign = await issuer.tokenFor('http://127.0.0.1:9/other');
    issuer.format = 'jwt';
    assert.equal((await listed(asking, token)).status, 200);
    assert.equal((await listed(asking, foreign)).status, 401);
    assert.equal((await listed(asking, 'made-up')).status, 401);
    assert.equal((await listed(server, token)).status, 401, 'a server that asks nobody');
  });
});
