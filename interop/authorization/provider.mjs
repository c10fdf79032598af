// An authorization server as npm has it (oidc-provider), in this process. Its one user signs in and agrees to everything at once.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import http from 'node:http';
import Provider from 'oidc-provider';

const SCOPES = ['mcp', 'call', 'deploy'];

function keys(name) {
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ format: 'jwk' });
  return [
    { ...rsa, kid: `${name}-rsa`, use: 'sig', alg: 'RS256' },
    { ...ec, kid: `${name}-ec`, use: 'sig', alg: 'ES256' },
  ];
}

export class AuthorizationServer {
  /** How long tokens last, in seconds. */
  ttl = 3600;
  /** `jwt` or `opaque`. */
  format = 'jwt';
  algorithm = 'RS256';
  /** The scopes that were agreed to, one entry for each sign-in. */
  consents = [];
  /** How often a token was renewed. */
  renewals = 0;
  /** When its keys were last asked for. */
  keysAskedAt = 0;
  #keys = keys('first');
  #handler;
  #provider;

  static async start() {
    const self = new AuthorizationServer();
    self.server = http.createServer((request, response) => self.#handle(request, response));
    await new Promise((resolve) => self.server.listen(0, '127.0.0.1', resolve));
    self.url = `http://127.0.0.1:${self.server.address().port}`;
    self.#make();
    return self;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }

  /** From now on it signs with other keys, and shows the old ones no more. */
  rotate() {
    this.#keys = keys(randomUUID());
    this.#make();
  }

  /** A token for a program, which no person agrees to. */
  async tokenFor(resource, scope = SCOPES.join(' ')) {
    const body = new URLSearchParams({ grant_type: 'client_credentials', resource, scope });
    const authorization = `Basic ${Buffer.from('robot:robot-secret').toString('base64')}`;
    const answer = await fetch(`${this.url}/token`, { method: 'POST', body, headers: { authorization } });
    const { access_token: token, ...rest } = await answer.json();
    if (!token) throw new Error(`no token: ${answer.status} ${JSON.stringify(rest)}`);
    return token;
  }

  #make() {
    const provider = new Provider(this.url, {
      clients: [
        {
          client_id: 'robot',
          client_secret: 'robot-secret',
          grant_types: ['client_credentials'],
          redirect_uris: [],
          response_types: [],
        },
      ],
      cookies: { keys: ['not a secret'] },
      jwks: { keys: this.#keys },
      scopes: ['openid', 'offline_access', ...SCOPES],
      pkce: { required: () => true },
      findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
      interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
      issueRefreshToken: async () => true,
      ttl: {
        AccessToken: () => this.ttl,
        ClientCredentials: () => this.ttl,
        Grant: 3600,
        Interaction: 600,
        RefreshToken: 3600,
        Session: 3600,
      },
      features: {
        clientCredentials: { enabled: true },
        devInteractions: { enabled: false },
        introspection: { enabled: true },
        registration: { enabled: true },
        resourceIndicators: {
          enabled: true,
          useGrantedResource: async () => true,
          getResourceServerInfo: async (_, resource) => ({
            audience: resource,
            scope: SCOPES.join(' '),
            accessTokenFormat: this.format,
            accessTokenTTL: this.ttl,
            jwt: { sign: { alg: this.algorithm } },
          }),
        },
      },
    });
    provider.on('grant.success', (context) => {
      if (context.oidc.params.grant_type === 'refresh_token') this.renewals += 1;
    });
    this.#provider = provider;
    this.#handler = provider.callback();
  }

  #handle(request, response) {
    if (request.url.startsWith('/interaction/')) {
      this.#agree(request, response).catch((error) => response.writeHead(500).end(String(error)));
      return;
    }
    if (request.url === '/jwks') this.keysAskedAt = Date.now();
    this.#handler(request, response);
  }

  async #agree(request, response) {
    const { prompt, params, session, grantId } = await this.#provider.interactionDetails(request, response);
    let result = { login: { accountId: 'ada' } };
    if (prompt.name === 'consent') {
      const { Grant } = this.#provider;
      const grant = grantId ? await Grant.find(grantId) : new Grant({ accountId: session.accountId, clientId: params.client_id });
      if (prompt.details.missingOIDCScope) grant.addOIDCScope(prompt.details.missingOIDCScope.join(' '));
      for (const [resource, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
        grant.addResourceScope(resource, scopes.join(' '));
      }
      result = { consent: { grantId: await grant.save() } };
      this.consents.push(params.scope);
    }
    await this.#provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
  }
}

/** Opens an address as a browser does: with cookies, and on to wherever it is sent. Gives the last response. */
export async function browse(address) {
  const cookies = new Map();
  for (let n = 0; n < 20; n += 1) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const response = await fetch(address, { redirect: 'manual', headers: cookie ? { cookie } : {} });
    for (const line of response.headers.getSetCookie()) {
      const [name, ...value] = line.split(';')[0].split('=');
      cookies.set(name, value.join('='));
    }
    const to = response.headers.get('location');
    if (to === null) return response;
    address = new URL(to, address).href;
  }
  throw new Error(`sent on and on: ${address}`);
}
