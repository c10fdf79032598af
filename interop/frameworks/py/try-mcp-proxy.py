"""mcp-proxy: a bridge from standard input and output to a server at a URL, and `mcp` 1.x that speaks to it. It passes no
questions on."""

import sys
from contextlib import asynccontextmanager
from datetime import timedelta

from driver import Framework, main, texts
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


@asynccontextmanager
async def connect(options):
    async def call(tool, arguments):
        result = await session.call_tool(tool, arguments)
        return texts(result.content)

    bridge = StdioServerParameters(command=sys.executable, args=["-m", "mcp_proxy", "--transport", "streamablehttp", options.url])
    timeout = options.call_timeout and timedelta(seconds=options.call_timeout)
    async with (
        stdio_client(bridge) as (read, write),
        ClientSession(read, write, read_timeout_seconds=timeout) as session,
    ):
        await session.initialize()
        yield Framework([tool.name for tool in (await session.list_tools()).tools], call)


main("mcp-proxy", connect)
