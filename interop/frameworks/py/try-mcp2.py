"""`mcp` 2.x, the official Python client: without a timeout unless it is given one."""

from contextlib import asynccontextmanager

import mcp_types as types
from driver import Framework, main, texts
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


@asynccontextmanager
async def connect(options):
    async def asked(_context, params):
        return types.ElicitResult(action="accept", content=options.answer(params.requested_schema))

    async def call(tool, arguments):
        result = await client.call_tool(tool, arguments)
        return texts(result.content)

    program, *args = options.serve
    server = options.url or stdio_client(StdioServerParameters(command=program, args=args))
    async with Client(server, read_timeout_seconds=options.call_timeout, elicitation_callback=asked) as client:
        yield Framework([tool.name for tool in (await client.list_tools()).tools], call)


main("mcp", connect, elicits=True)
