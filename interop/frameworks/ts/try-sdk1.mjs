// The official TypeScript SDK 1.x. Gives up after 60 s, and cancels.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answer, callTimeout, main, options, texts } from './driver.mjs';

await main(
  '@modelcontextprotocol/sdk',
  async () => {
    const client = new Client({ name: 'trial', version: '1.0.0' }, { capabilities: { elicitation: {} } });
    client.setRequestHandler(ElicitRequestSchema, (request) => answer(request.params));
    const transport = new StreamableHTTPClientTransport(new URL(options.url));
    await client.connect(transport);
    const { tools } = await client.listTools();
    return {
      tools: tools.map((tool) => tool.name),
      call: async (name, args) => texts((await client.callTool({ name, arguments: args }, undefined, { timeout: callTimeout })).content),
      close: async () => {
        await transport.terminateSession();
        await client.close();
      },
    };
  },
  { elicits: true },
);
