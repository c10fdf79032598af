"""The FastMCP client (`fastmcp` + `fastmcp-tasks`, 4.1.4) against a server.

FastMCP drives tasks by itself once `fastmcp_tasks` is imported, polls from
20 ms upwards and sends no `Mcp-Name` header on `tasks/*`. One `httpx` event
hook below records what is really sent. After `initialize` it knows no tasks:
there it is a client whose calls are held open.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx2
from checks import Checks, form_answer
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task

check = Checks("fastmcp")


class Wire:
    """Every request sent: (JSON-RPC method, HTTP headers)."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, httpx2.Headers]] = []

    def count(self, method: str) -> int:
        return sum(1 for sent, _ in self.sent if sent == method)

    async def _record(self, request: httpx2.Request) -> None:
        if request.content:
            self.sent.append((json.loads(request.content).get("method", ""), request.headers))

    def factory(self, **options: Any) -> httpx2.AsyncClient:
        known = {k: options[k] for k in ("headers", "timeout", "auth") if options.get(k) is not None}
        known["follow_redirects"] = options.get("follow_redirects", True)
        return httpx2.AsyncClient(**known, event_hooks={"request": [self._record]})


def connect(url: str, wire: Wire | None = None, **options: Any) -> Client:
    transport = StreamableHttpTransport(url, **({"httpx_client_factory": wire.factory} if wire else {}))
    return Client(transport, **options)


def answering(asked: list[str]) -> Any:
    async def handler(message: str, _response_type: Any, params: Any, _context: Any) -> dict:
        asked.append(message)
        return form_answer(params.requested_schema)

    return handler


def text(result: Any) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


@check("greet")
async def _(url: str) -> None:
    wire = Wire()
    async with connect(url, wire) as client:
        assert client.session.protocol_version == "2026-07-28", client.session.protocol_version
        assert text(await client.call_tool("greet", {"name": "Grace"})) == "Hello, Grace!"
        assert wire.count("initialize") == 0 and wire.count("tasks/get") == 0


@check("slow_compute: call_tool drives the task to its result, without Mcp-Name on tasks/*")
async def _(url: str) -> None:
    wire = Wire()
    async with connect(url, wire) as client:
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "fastmcp"})
        assert not result.is_error and result.content, result
        gets = [headers for method, headers in wire.sent if method == "tasks/get"]
        assert gets, "the call must have become a task"
        assert all("mcp-name" not in headers for headers in gets)


@check("slow_compute: explicit handle, status then result")
async def _(url: str) -> None:
    async with connect(url) as client:
        task = await call_tool_task(client, "slow_compute", {"seconds": 1, "label": "fastmcp-handle"})
        status = await task.status()
        assert status.task_id == task.task_id and status.status == "working", status
        result = await task.result()
        assert not result.is_error and result.content, result
        final = await task.status()
        assert final.status == "completed" and final.result["resultType"] == "complete", final


@check("confirm_delete: the elicitation handler answers inside the task, once")
async def _(url: str) -> None:
    asked: list[str] = []
    async with connect(url, elicitation_handler=answering(asked)) as client:
        result = await client.call_tool("confirm_delete", {"filename": "fastmcp.txt"})
        assert not result.is_error, result
        assert len(asked) == 1, asked


@check("multi_input: both elicitations answered, none asked twice")
async def _(url: str) -> None:
    asked: list[str] = []
    async with connect(url, elicitation_handler=answering(asked)) as client:
        result = await client.call_tool("multi_input", {})
        assert not result.is_error, result
        assert len(asked) == 2, asked


@check("cancel stops a running task")
async def _(url: str) -> None:
    async with connect(url) as client:
        task = await call_tool_task(client, "slow_compute", {"seconds": 60, "label": "fastmcp-cancel"})
        started = time.monotonic()
        await task.cancel()
        final = await task.wait(timeout=15)
        assert final.status == "cancelled", final.status
        assert time.monotonic() - started < 15
        try:
            await task.result()
        except ToolError as error:
            assert "cancelled" in str(error)
        else:
            raise AssertionError("a cancelled task has no result")


@check("failing_job: completed, and its tool error is raised")
async def _(url: str) -> None:
    async with connect(url) as client:
        task = await call_tool_task(client, "failing_job", {})
        assert (await task.wait(timeout=15)).status == "completed"
        try:
            await task.result()
        except ToolError:
            pass
        else:
            raise AssertionError("isError must be raised")


@check("protocol_error_job: failed")
async def _(url: str) -> None:
    async with connect(url) as client:
        task = await call_tool_task(client, "protocol_error_job", {})
        final = await task.wait(timeout=15)
        assert final.status == "failed" and isinstance(final.error["code"], int), final


@check("two tasks at once do not block each other")
async def _(url: str) -> None:
    async with connect(url) as client:
        started = time.monotonic()
        results = await asyncio.gather(
            *(client.call_tool("slow_compute", {"seconds": 1, "label": f"fastmcp-{n}"}) for n in range(5))
        )
        assert all(not result.is_error for result in results)
        assert time.monotonic() - started < 4, "five one-second tasks must overlap"


@check.legacy("mode=legacy: the same tools, synchronously")
async def _(url: str) -> None:
    wire = Wire()
    async with connect(url, wire, mode="legacy") as client:
        assert client.session.protocol_version == "2025-11-25", client.session.protocol_version
        assert text(await client.call_tool("greet", {"name": "Old"})) == "Hello, Old!"
        result = await client.call_tool("slow_compute", {"seconds": 2, "label": "fastmcp-legacy"})
        assert not result.is_error and result.content, result
        assert wire.count("initialize") == 1 and wire.count("tasks/get") == 0


@check.legacy("mode=legacy: the elicitation handler answers in the middle of a call")
async def _(url: str) -> None:
    asked: list[str] = []
    async with connect(url, mode="legacy", elicitation_handler=answering(asked)) as client:
        result = await client.call_tool("confirm_delete", {"filename": "fastmcp-legacy.txt"})
        assert text(result) == "Deleted fastmcp-legacy.txt", result
        result = await client.call_tool("multi_input", {})
        assert not result.is_error, result
        assert len(asked) == 3 == len(set(asked)), asked


@check.legacy("mode=legacy: progress and log lines on the way")
async def _(url: str) -> None:
    steps: list[float] = []
    lines: list[Any] = []

    async def progressed(progress: float, _total: float | None, _message: str | None) -> None:
        steps.append(progress)

    async def logged(message: Any) -> None:
        lines.append(message.data)

    async with connect(url, mode="legacy", progress_handler=progressed, log_handler=logged) as client:
        await client.call_tool("test_tool_with_progress", {})
        await client.call_tool("test_tool_with_logging", {})
        assert steps == [0, 50, 100], steps
        assert len(lines) == 3, lines


@check.legacy("mode=legacy: an error of a tool is raised")
async def _(url: str) -> None:
    async with connect(url, mode="legacy") as client:
        try:
            await client.call_tool("test_error_handling", {})
        except ToolError as error:
            assert "intentionally" in str(error), error
        else:
            raise AssertionError("isError must be raised")


@check.legacy("mode=legacy: the server closes the stream of a call, the client comes back")
async def _(url: str) -> None:
    async with connect(url, mode="legacy") as client:
        result = await client.call_tool("test_reconnection", {})
        assert not result.is_error and result.content, result


@check.legacy("mode=legacy: calls at the same time do not block each other")
async def _(url: str) -> None:
    async with connect(url, mode="legacy") as client:
        started = time.monotonic()
        results = await asyncio.gather(
            *(client.call_tool("slow_compute", {"seconds": 1, "label": f"fastmcp-{n}"}) for n in range(5))
        )
        assert all(not result.is_error for result in results)
        assert time.monotonic() - started < 4, "five one-second calls must overlap"


if __name__ == "__main__":
    check.main()
