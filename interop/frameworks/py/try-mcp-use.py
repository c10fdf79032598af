"""mcp-use: LangChain tools by its own adapter, with arguments checked by a model that it makes of the schema. It has no timeout for a
call (`sse_read_timeout` is for silence), so the program around it gives up, and closes its sessions."""

import asyncio
import os
from contextlib import asynccontextmanager

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from driver import Framework, main, texts
from mcp.types import ElicitResult
from mcp_use import MCPClient
from mcp_use.agents.adapters import LangChainAdapter


@asynccontextmanager
async def connect(options):
    async def asked(_context, params):
        return ElicitResult(action="accept", content=options.answer(params.requestedSchema))

    async def call(name, arguments):
        async with asyncio.timeout(options.call_timeout):
            result = await tools[name].ainvoke(arguments)
        return result if isinstance(result, str) else texts(result) if isinstance(result, list) else str(result)

    client = MCPClient({"mcpServers": {"taskwire": {"url": options.url}}}, elicitation_callback=asked)
    await client.create_all_sessions()
    adapter = LangChainAdapter()
    await adapter.create_all(client)
    tools = {tool.name: tool for tool in adapter.tools}
    yield Framework(list(tools), call)
    await client.close_all_sessions()


main("mcp-use", connect, elicits=True)
