"""LlamaIndex: a function tool of each tool; a session for each call. Gives up after 30 s."""

from contextlib import asynccontextmanager

from driver import Framework, main, texts
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


@asynccontextmanager
async def connect(options):
    timeout = {} if options.call_timeout is None else {"timeout": int(options.call_timeout)}

    async def call(name, arguments):
        output = await tools[name].acall(**arguments)
        # A model reads it as Python shows such an object; the text is the same.
        return texts(output.raw_output.content)

    made = await McpToolSpec(BasicMCPClient(options.url, **timeout)).to_tool_list_async()
    tools = {tool.metadata.name: tool for tool in made}
    for tool in made:
        tool.metadata.to_openai_tool()
    yield Framework(list(tools), call)


main("llama-index-tools-mcp", connect, gives_up=30)
