"""Strands: an agent tool of each tool, from a client with a thread of its own. Without a timeout unless a tool is given one."""

from contextlib import asynccontextmanager
from datetime import timedelta

from driver import Framework, main, texts
from mcp.types import ElicitResult
from strands.tools.mcp import MCPClient


@asynccontextmanager
async def connect(options):
    async def asked(_context, params):
        schema = params.requested_schema if hasattr(params, "requested_schema") else params.requestedSchema
        return ElicitResult(action="accept", content=options.answer(schema))

    async def call(name, arguments):
        use = {"toolUseId": "use", "name": name, "input": arguments}
        async for event in tools[name].stream(use, {}):
            result = event["tool_result"]
        return texts(result["content"])

    client = MCPClient(url=options.url, elicitation_callback=asked)
    tools = {tool.tool_name: tool for tool in await client.load_tools()}
    for tool in tools.values():
        tool.timeout = options.call_timeout and timedelta(seconds=options.call_timeout)
        assert tool.tool_spec["inputSchema"]["json"]["type"] == "object"
    yield Framework(list(tools), call)
    client.stop(None, None, None)


main("strands-agents", connect, elicits=True)
