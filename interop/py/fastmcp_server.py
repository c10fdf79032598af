"""A task server of FastMCP 4 (2026-07-28): `TasksExtension` on Docket's in-memory backend.

    python py/fastmcp_server.py [--stdio]

Over HTTP it takes a free port and prints "listening URL".
"""

from __future__ import annotations

import asyncio
import socket
import sys
from datetime import timedelta
from typing import Any

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp.shared.exceptions import MCPError

POLL = timedelta(milliseconds=200)
OPTIONAL = TaskConfig(mode="optional", poll_interval=POLL)
REQUIRED = TaskConfig(mode="required", poll_interval=POLL)

FLAG = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 1},
        "age": {"type": "integer", "title": "Age", "minimum": 0, "default": 30},
        "color": {"type": "string", "title": "Color", "enum": ["red", "green"]},
    },
    "required": ["name", "color"],
}

mcp = FastMCP("fastmcp", version="4.1.4")
mcp.add_extension(TasksExtension(url="memory://"))


def form(message: str, schema: dict[str, Any]) -> mcp_types.ElicitRequest:
    return mcp_types.ElicitRequest(params=mcp_types.ElicitRequestFormParams(message=message, requested_schema=schema))


def said(answer: Any) -> str:
    if answer.action != "accept":
        return f"no answer: {answer.action}"
    return f"{answer.content['name']}, {answer.content['age']}, {answer.content['color']}"


async def steps_of(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step} of {steps}")
        await asyncio.sleep(0.25)
    return f"{steps} steps taken"


@mcp.tool
async def quick(name: str) -> str:
    return f"Hello, {name}!"


@mcp.tool
async def held(steps: int, ctx: Context) -> str:
    """Never a task: progress on the call itself."""
    return await steps_of(steps, ctx)


@mcp.tool(task=OPTIONAL)
async def slow(steps: int, ctx: Context) -> str:
    return await steps_of(steps, ctx)


@mcp.tool(task=REQUIRED)
async def ask(ctx: Context) -> Any:
    answers = ctx.input_responses
    if answers is None:
        return mcp_types.InputRequiredResult(input_requests={"who": form("Who are you?", FORM)})
    return said(answers["who"])


@mcp.tool
async def ask_held(ctx: Context) -> Any:
    """Never a task: asks by rounds of the call."""
    answers = ctx.input_responses
    if answers is None:
        asked = {"who": form("Who are you?", FORM)}
        return mcp_types.InputRequiredResult(input_requests=asked, request_state="asked")
    return f"{said(answers['who'])}, {ctx.request_state}"


@mcp.tool(task=REQUIRED)
async def ask_twice(ctx: Context) -> Any:
    """Asks two questions at once."""
    answers = ctx.input_responses
    if answers is None:
        asked = {"first": form("First?", FLAG), "second": form("Second?", FLAG)}
        return mcp_types.InputRequiredResult(input_requests=asked)
    return f"{answers['first'].content['ok']} {answers['second'].content['ok']}".lower()


@mcp.tool(task=REQUIRED)
async def endless() -> str:
    """Works until cancelled."""
    await asyncio.Event().wait()
    return "never"


@mcp.tool(task=REQUIRED)
async def broken() -> str:
    await asyncio.sleep(0.3)
    raise ToolError("it broke")


@mcp.tool(task=REQUIRED)
async def fault() -> str:
    await asyncio.sleep(0.3)
    raise MCPError(code=-32050, message="out of order", data={"part": 7})


async def serve_http() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    await mcp.run_http_async(show_banner=False, host="127.0.0.1", path="/mcp", log_level="warning", sockets=[listener])


if "--stdio" in sys.argv:
    mcp.run(transport="stdio", show_banner=False, log_level="warning")
else:
    asyncio.run(serve_http())
