"""smolagents: a tool of each tool, called from other threads. Said to give up after 5 s, but that is no timeout unless it is a float."""

from contextlib import asynccontextmanager

from driver import Framework, main
from smolagents import MCPClient
from smolagents.models import get_tool_json_schema


@asynccontextmanager
async def connect(options):
    timeout = {} if options.call_timeout is None else {"client_session_timeout_seconds": float(options.call_timeout)}

    def call(name, arguments):
        result = tools[name](**arguments)
        return result if isinstance(result, str) else str(result)

    with MCPClient({"url": options.url}, adapter_kwargs=timeout, structured_output=False) as made:
        tools = {tool.name: tool for tool in made}
        for tool in made:
            get_tool_json_schema(tool)
        yield Framework(list(tools), call)


main("smolagents", connect)
