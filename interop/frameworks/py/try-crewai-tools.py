"""CrewAI's adapter for servers that are connected to once (`crewai-tools`). It sends null for what a model left out. Without a
timeout, and there is no option for one."""

import os
from contextlib import asynccontextmanager

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TESTING="true")

from crewai_tools import MCPServerAdapter
from driver import Framework, main


@asynccontextmanager
async def connect(options):
    def call(name, arguments):
        return str(tools[name].run(**arguments))

    with MCPServerAdapter({"url": options.url, "transport": "streamable-http"}) as made:
        tools = {tool.name: tool for tool in made}
        yield Framework(list(tools), call)


main("crewai-tools", connect, gives_up=False)
