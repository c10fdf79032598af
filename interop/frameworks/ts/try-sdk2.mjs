// The official TypeScript SDK 2.x, as it negotiates by itself. Gives up after 60 s.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { answer, callTimeout, main, options, texts } from './driver.mjs';

await main(
  '@modelcontextprotocol/client',
  async () => {
    const client = new Client({ name: 'trial', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
    client.setRequestHandler('elicitation/create', (request) => answer(request.params));
    await client.connect(new StreamableHTTPClientTransport(new URL(options.url)));
    const { tools } = await client.listTools();
    return {
      tools: tools.map((tool) => tool.name),
      call: async (name, args) => texts((await client.callTool({ name, arguments: args }, { timeout: callTimeout })).content),
      close: () => client.close(),
    };
  },
  { elicits: true },
);
