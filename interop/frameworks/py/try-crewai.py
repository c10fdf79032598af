"""CrewAI's own client, which an agent's `mcps` uses: a session for each call. Gives up after 30 s, which cannot be changed, and then
calls again by itself, three times in all."""

import logging
import os
from contextlib import asynccontextmanager

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TESTING="true")

from crewai.mcp import MCPServerHTTP
from crewai.mcp.tool_resolver import MCPToolResolver
from driver import Framework, main


@asynccontextmanager
async def connect(options):
    # From within a loop: without one, Python 3.11 and this version cannot close a connection, to whatever server.
    async def call(name, arguments):
        return str(tools[name].run(**arguments))

    resolver = MCPToolResolver(agent=None, logger=logging.getLogger("trial"))
    made = resolver.resolve([MCPServerHTTP(url=options.url)])
    tools = {tool.original_tool_name: tool for tool in made}
    yield Framework(list(tools), call)
    resolver.cleanup()


main("crewai", connect, gives_up=False, repeats=True)
