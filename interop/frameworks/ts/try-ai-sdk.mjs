// The AI SDK's client: tools with `execute`, as `generateText` calls them. It has no timeout; a program gives up by an abort signal.
import { createMCPClient, ElicitationRequestSchema } from '@ai-sdk/mcp';
import { asSchema } from 'ai';
import { answer, callTimeout, main, options, texts } from './driver.mjs';

await main(
  '@ai-sdk/mcp',
  async () => {
    const client = await createMCPClient({
      transport: { type: 'http', url: options.url },
      capabilities: { elicitation: {} },
    });
    client.onElicitationRequest(ElicitationRequestSchema, (request) => answer(request.params));
    const tools = await client.tools();
    for (const tool of Object.values(tools)) await asSchema(tool.inputSchema).jsonSchema;
    return {
      tools: Object.keys(tools),
      call: async (name, args) => {
        const abortSignal = callTimeout === undefined ? undefined : AbortSignal.timeout(callTimeout);
        const result = await tools[name].execute(args, { toolCallId: 'call', messages: [], abortSignal });
        return texts(result.content);
      },
      close: () => client.close(),
    };
  },
  { elicits: true },
);
