"""FastMCP's client: without a timeout unless it is given one."""

from contextlib import asynccontextmanager

from driver import Framework, main, texts
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult


@asynccontextmanager
async def connect(options):
    async def asked(_message, _response_type, params, _context):
        return ElicitResult(action="accept", content=options.answer(params.requested_schema))

    async def call(tool, arguments):
        result = await client.call_tool(tool, arguments, raise_on_error=False)
        return texts(result.content)

    async with Client(options.url, timeout=options.call_timeout, elicitation_handler=asked) as client:
        yield Framework([tool.name for tool in await client.list_tools()], call)


main("fastmcp-slim", connect, elicits=True)
