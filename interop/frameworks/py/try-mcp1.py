"""`mcp` 1.x, the official Python client: without a timeout unless it is given one."""

from contextlib import asynccontextmanager
from datetime import timedelta

from driver import Framework, main, texts
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


@asynccontextmanager
async def connect(options):
    async def asked(_context, params):
        return types.ElicitResult(action="accept", content=options.answer(params.requestedSchema))

    async def call(tool, arguments):
        result = await session.call_tool(tool, arguments)
        return texts(result.content)

    timeout = options.call_timeout and timedelta(seconds=options.call_timeout)
    program, *args = options.serve
    server = StdioServerParameters(command=program, args=args)
    async with (
        streamablehttp_client(options.url) if options.url else stdio_client(server) as (read, write, *_),
        ClientSession(read, write, read_timeout_seconds=timeout, elicitation_callback=asked) as session,
    ):
        await session.initialize()
        yield Framework([tool.name for tool in (await session.list_tools()).tools], call)


main("mcp", connect, elicits=True)
