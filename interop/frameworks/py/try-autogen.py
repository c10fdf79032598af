"""AutoGen: an adapter of each tool, whose arguments are checked by a model that it makes of the schema. Reads for 300 s at most."""

from contextlib import asynccontextmanager

from autogen_core import CancellationToken
from autogen_ext.tools.mcp import StreamableHttpServerParams, mcp_server_tools
from driver import Framework, main


@asynccontextmanager
async def connect(options):
    timeout = {} if options.call_timeout is None else {"sse_read_timeout": options.call_timeout}

    async def call(name, arguments):
        result = await tools[name].run_json(arguments, CancellationToken())
        return tools[name].return_value_as_string(result) if isinstance(result, str) else "\n".join(b.text for b in result)

    made = await mcp_server_tools(StreamableHttpServerParams(url=options.url, **timeout))
    tools = {tool.name: tool for tool in made}
    for tool in made:
        tool.schema
    yield Framework(list(tools), call)


main("autogen-ext", connect)
