// A client that speaks to a bridge on its standard input and output: the official TypeScript SDK 1.x.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answer, callTimeout, main, texts } from './driver.mjs';

export const bridge = (name, command, args, { elicits = true } = {}) =>
  main(
    name,
    async () => {
      const client = new Client({ name: 'trial', version: '1.0.0' }, { capabilities: elicits ? { elicitation: {} } : {} });
      if (elicits) client.setRequestHandler(ElicitRequestSchema, (request) => answer(request.params));
      await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: 'inherit' }));
      const { tools } = await client.listTools();
      return {
        tools: tools.map((tool) => tool.name),
        call: async (name, args) => texts((await client.callTool({ name, arguments: args }, undefined, { timeout: callTimeout })).content),
        close: () => client.close(),
      };
    },
    { elicits },
  );
