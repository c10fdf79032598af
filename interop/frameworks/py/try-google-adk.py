"""Google ADK: a tool of each tool, with a declaration as Gemini wants it. Gives up after 300 s."""

from contextlib import asynccontextmanager
from unittest.mock import MagicMock

from driver import Framework, main, texts
from google.adk.tools.mcp_tool.mcp_session_manager import StreamableHTTPConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from google.adk.tools.tool_context import ToolContext
from mcp.types import ElicitResult


@asynccontextmanager
async def connect(options):
    async def asked(_context, params):
        schema = params.requested_schema if hasattr(params, "requested_schema") else params.requestedSchema
        return ElicitResult(action="accept", content=options.answer(schema))

    async def call(name, arguments):
        # Only what an agent's run would fill in: who calls, and what was confirmed.
        result = await tools[name].run_async(args=arguments, tool_context=MagicMock(spec=ToolContext))
        return texts(result["content"]) if "content" in result else str(result)

    timeout = {} if options.call_timeout is None else {"sse_read_timeout": options.call_timeout}
    toolset = McpToolset(
        connection_params=StreamableHTTPConnectionParams(url=options.url, **timeout), elicitation_callback=asked
    )
    tools = {tool.name: tool for tool in await toolset.get_tools()}
    for tool in tools.values():
        assert tool._get_declaration().name == tool.name
    yield Framework(list(tools), call)
    await toolset.close()


main("google-adk", connect, elicits=True)
