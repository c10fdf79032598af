"""OpenAI Agents: a function tool of each tool, invoked as its runner does. Gives up after 5 s; its model reads what went wrong."""

import json
from contextlib import asynccontextmanager

from agents import Agent, RunContextWrapper
from agents.mcp import MCPServerStreamableHttp, MCPUtil
from agents.tool_context import ToolContext
from driver import Framework, main


@asynccontextmanager
async def connect(options):
    timeout = {} if options.call_timeout is None else {"client_session_timeout_seconds": options.call_timeout}

    async def call(name, arguments):
        text = json.dumps(arguments)
        context = ToolContext(None, tool_name=name, tool_call_id="call", tool_arguments=text)
        result = await tools[name].on_invoke_tool(context, text)
        blocks = result if isinstance(result, list) else [result]
        return "\n".join(block if isinstance(block, str) else block["text"] for block in blocks)

    async with MCPServerStreamableHttp({"url": options.url}, **timeout) as server:
        made = await MCPUtil.get_function_tools(server, True, RunContextWrapper(None), Agent("trial"))
        tools = {tool.name: tool for tool in made}
        yield Framework(list(tools), call)


main("openai-agents", connect, gives_up=5)
