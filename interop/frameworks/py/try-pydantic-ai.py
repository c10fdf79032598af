"""pydantic-ai: a toolset, called as its agent does. Reads for 300 s at most."""

from contextlib import asynccontextmanager

from driver import Framework, main
from fastmcp.client.elicitation import ElicitResult
from pydantic_ai import RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage


@asynccontextmanager
async def connect(options):
    async def asked(_message, _response_type, params, _context):
        return ElicitResult(action="accept", content=options.answer(params.requested_schema))

    async def call(name, arguments):
        checked = tools[name].args_validator.validate_python(arguments)
        result = await toolset.call_tool(name, checked, context, tools[name])
        return result if isinstance(result, str) else "\n".join(map(str, result))

    timeout = {} if options.call_timeout is None else {"read_timeout": options.call_timeout}
    context = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    async with MCPToolset(options.url, elicitation_handler=asked, **timeout) as toolset:
        tools = await toolset.get_tools(context)
        yield Framework(list(tools), call)


main("pydantic-ai-slim", connect, elicits=True)
