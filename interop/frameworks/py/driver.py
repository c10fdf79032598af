"""What all drivers have in common. A driver opens a connection with its framework, says what it is, and does what its input says:

    {"list": true}                            the names of the tools that the framework made: {"tools": [...]}
    {"call": "count", "arguments": {...}}     {"text": "..."} as a model would read it, or {"error": "..."}
    {"asked": true}                           how often the framework put a question to its user: {"asked": 0}

One JSON object a line; each answer begins with `@@ `, since frameworks print things too. The end of the input closes the connection.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any


@dataclass
class Options:
    # None if the client is to start its server.
    url: str | None
    # How a client starts its server.
    serve: list[str]
    # Seconds after which a call is to be given up; None is the framework's own default.
    call_timeout: float | None
    asked: int = 0

    def answer(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Fills in a form, as the user."""
        self.asked += 1
        return dict.fromkeys(schema["properties"], "eu")


@dataclass
class Framework:
    """A connection: the tools that the framework made, by name, and how one of them is called."""

    tools: list[str]
    call: Callable[[str, dict[str, Any]], Awaitable[str] | str]


Connect = Callable[[Options], AbstractAsyncContextManager[Framework]]


def say(**what: Any) -> None:
    print("@@ " + json.dumps(what), flush=True)


def texts(blocks: Any) -> str:
    """The text of content blocks, whatever class they are of."""
    found = [block.get("text") if isinstance(block, dict) else getattr(block, "text", None) for block in blocks]
    return "\n".join(text for text in found if text)


async def serve(connect: Connect, traits: dict[str, Any]) -> None:
    options = Options(**json.loads(sys.argv[1]))
    async with connect(options) as framework:
        say(**traits)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if "list" in request:
                say(tools=framework.tools)
            elif "asked" in request:
                say(asked=options.asked)
            else:
                say(**await call(framework, request["call"], request["arguments"]))


async def call(framework: Framework, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        if inspect.iscoroutinefunction(framework.call):
            text = await framework.call(tool, arguments)
        else:
            text = await asyncio.to_thread(framework.call, tool, arguments)
        return {"text": text if isinstance(text, str) else json.dumps(text)}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # groups and cancellations of task groups included
        traceback.print_exc(file=sys.stderr)
        return {"error": f"{type(error).__name__}: {error}"}


def main(
    package: str, connect: Connect, *, elicits: bool = False, gives_up: bool | float = True, repeats: bool = False
) -> None:
    """`elicits`: it can show questions. `gives_up`: it has a timeout, or after how many seconds it gives up by itself.
    `repeats`: it then calls again by itself."""
    traits = {"package": package, "version": version(package), "elicits": elicits, "gives_up": gives_up, "repeats": repeats}
    asyncio.run(serve(connect, traits))
