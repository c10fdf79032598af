"""A client without tasks, and the model that drives it: it does what the texts say, word by word, and knows nothing else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp import Client, ClientSession
from recorder import Tape

CLIENT = types.Implementation(name="plain-client", version="1.0.0")
NOT_YET = "This is not its result"
# Much longer than a call may take: how long it took is looked at later.
TIMEOUT_S = 50.0


def expect(held: Any, what: str) -> None:
    if not held:
        raise AssertionError(what)


def same(found: Any, wanted: Any, what: str) -> None:
    expect(found == wanted, f"{what}: {found!r} instead of {wanted!r}")


@asynccontextmanager
async def connected(era: str, transport: Any, tape: Tape) -> AsyncIterator[ClientSession]:
    if era == "2026-07-28":
        async with Client(tape.between(transport), client_info=CLIENT) as client:
            yield client.session
        return
    async with tape.between(transport) as (read, write), ClientSession(read, write, client_info=CLIENT) as session:
        offer = types.InitializeRequestParams(
            protocol_version=era, capabilities=types.ClientCapabilities(), client_info=CLIENT
        )
        session.adopt(await session.send_request(types.InitializeRequest(params=offer), types.InitializeResult))
        await session.send_notification(types.InitializedNotification())
        yield session


@dataclass
class Call:
    """A call that was answered."""

    tool: str
    arguments: dict[str, Any]
    took: float
    result: types.CallToolResult
    progress: list[tuple[float, float, float | None]]

    @property
    def texts(self) -> list[str]:
        return [block.text for block in self.result.content if block.type == "text"]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def is_over(self) -> bool:
        return NOT_YET not in self.text

    @property
    def asks(self) -> bool:
        return "has a question" in self.text

    def arguments_for(self, tool: str) -> dict[str, Any]:
        """The arguments with which this text says that a tool is to be called."""
        mention = re.search(rf"`{tool}` with (?=\{{)", self.text)
        expect(mention, f"nothing is said of `{tool}` with arguments in: {self.text}")
        return json.JSONDecoder().raw_decode(self.text, mention.end())[0]


@dataclass
class Model:
    """Does what the texts say, and knows nothing else."""

    session: ClientSession
    hold: float
    calls: list[Call] = field(default_factory=list)

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float | None = None) -> Call:
        progress: list[tuple[float, float, float | None]] = []
        began = time.monotonic()

        async def progressed(done: float, total: float | None, _message: str | None) -> None:
            progress.append((time.monotonic() - began, done, total))

        result = await self.session.call_tool(tool, arguments, timeout or self.hold + TIMEOUT_S, progressed)
        call = Call(tool, arguments, time.monotonic() - began, result, progress)
        self.calls.append(call)
        return call

    async def answer(self, asked: Call, choice: str) -> Call:
        """Fills in the form that a text gave it to copy."""
        arguments = asked.arguments_for("task_answer")
        same(arguments["value"], "<one of the choices>", "a value to fill in")
        arguments["value"] = choice
        answered = await self.call("task_answer", arguments)
        expect(not answered.result.is_error, answered.text)
        return answered

    async def page(self, arguments: dict[str, Any]) -> tuple[str, Call]:
        """One page of output, and what was said below it."""
        call = await self.call("task_output", arguments)
        expect(not call.result.is_error, call.text)
        *output, standing = call.texts
        expect(standing.startswith("---\n"), f"the last text is about the task: {standing}")
        return "".join(output), call

    async def read(self, arguments: dict[str, Any]) -> tuple[str, int, dict[str, Any] | None]:
        """All output from here on, in how many pages it came, and where it goes on if it does."""
        output, pages = "", 0
        while True:
            more, call = await self.page(arguments)
            output, pages = output + more, pages + 1
            if "That is all of the output" in call.text or "has written nothing" in call.text and "ended" in call.text:
                return output, pages, None
            arguments = call.arguments_for("task_output")
            if "There is more" not in call.text:
                return output, pages, arguments
