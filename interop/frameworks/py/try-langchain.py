"""LangChain's adapters: a structured tool of each tool; a session for each call. Reads for 300 s at most."""

from contextlib import asynccontextmanager
from datetime import timedelta

from driver import Framework, main, texts
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult


@asynccontextmanager
async def connect(options):
    async def asked(_mcp, params, _context):
        return ElicitResult(action="accept", content=options.answer(params.requestedSchema))

    async def call(name, arguments):
        result = await tools[name].ainvoke(arguments)
        return result if isinstance(result, str) else texts(result)

    server = {"transport": "http", "url": options.url}
    if options.call_timeout is not None:
        server["session_kwargs"] = {"read_timeout_seconds": timedelta(seconds=options.call_timeout)}
    client = MultiServerMCPClient({"taskwire": server}, callbacks=Callbacks(on_elicitation=asked))
    tools = {tool.name: tool for tool in await client.get_tools()}
    for tool in tools.values():
        convert_to_openai_tool(tool)
    yield Framework(list(tools), call)


main("langchain-mcp-adapters", connect, elicits=True)
