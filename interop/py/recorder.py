"""Writes down what a client and a server say to each other, in the form of the documents in docs/traces.

A `Tape` stands between the client and its transport and passes every JSON-RPC message on as it is. `markdown` makes a
document of it: progress notifications that follow each other are shown by the first and the last of them, of the lines
of a command that follow each other only some, and what each message says about its sender once; the texts that a model
reads follow in full.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

CLIENT = "Client → server"
SERVER = "Server → client"
# Columns that a line of JSON should not exceed.
WIDTH = 120
# Members that come first, in this order; all others follow by name.
FIRST = ("jsonrpc", "id", "method", "resultType", "_meta", "type", "name", "taskId", "status", "code")
# Characters of a text within a message; what a model reads is shown in full below it.
TEXT_MAX = 60
# Lines of a command that follow each other: more than these are shown by some.
LINES_MAX = 4
# What each message of 2026-07-28 says about its sender.
ENVELOPE = "io.modelcontextprotocol/"
# A response that took longer than this is shown with the time.
LONG_S = 0.5


@dataclass
class Said:
    """A message, and when it passed."""

    at: float
    speaker: str
    message: dict[str, Any]


@dataclass
class Step:
    """What comes next, for readers."""

    title: str
    sentence: str


@dataclass
class Tape:
    """All that was said in one session."""

    entries: list[Said | Step] = field(default_factory=list)
    running: bool = True

    def step(self, title: str, sentence: str) -> Step:
        """What comes next. It may be said better when it is over."""
        step = Step(title, sentence)
        if self.running:
            self.entries.append(step)
        return step

    def said(self, speaker: str, item: Any) -> None:
        if self.running and not isinstance(item, Exception):
            message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            self.entries.append(Said(time.monotonic(), speaker, message))

    @asynccontextmanager
    async def between(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[tuple[Hearing, Speaking]]:
        """The transport, with this tape in it."""
        async with transport as (read, write):
            yield Hearing(read, self), Speaking(write, self)


class Passing:
    """A stream that is another one in all but what it notes down."""

    def __init__(self, stream: Any, tape: Tape) -> None:
        self._stream = stream
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Passing:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


class Hearing(Passing):
    async def receive(self) -> Any:
        item = await self._stream.receive()
        self._tape.said(SERVER, item)
        return item

    def __aiter__(self) -> Hearing:
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        self._tape.said(SERVER, item)
        return item


class Speaking(Passing):
    async def send(self, item: Any) -> None:
        self._tape.said(CLIENT, item)
        await self._stream.send(item)


# The document.


def layout(value: Any, indent: int = 0, taken: int = 0) -> str:
    """JSON for readers: on one line if there is room for it, else a line for each member. So many columns are taken."""
    line = one_line(value)
    if taken + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = [(f"{json.dumps(key)}: ", value[key]) for key in in_order(value)]
        parts = [key + layout(member, inner, inner + len(key)) for key, member in keys]
    else:
        parts = [layout(item, inner, inner) for item in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    gap = "\n" + " " * inner
    return start + gap + f",{gap}".join(parts) + "\n" + " " * indent + end


def one_line(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {one_line(value[key])}" for key in in_order(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(one_line, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def in_order(members: dict[str, Any]) -> list[str]:
    return sorted(members, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key))


def cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX].rstrip() + "…"


def texts(message: dict[str, Any]) -> list[str]:
    """What a model reads of a message."""
    content = (message.get("result") or {}).get("content") or []
    return [block["text"] for block in content if block.get("type") == "text"]


def in_short(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the texts of its content cut off."""
    content = (message.get("result") or {}).get("content")
    if content is None:
        return message
    blocks = [block | {"text": cut(block["text"])} if "text" in block else block for block in content]
    return message | {"result": message["result"] | {"content": blocks}}


def without_envelope(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what each of its kind says about its sender."""
    for part in ("params", "result"):
        meta = (message.get(part) or {}).get("_meta")
        if meta is not None:
            meta = {key: value for key, value in meta.items() if not key.startswith(ENVELOPE)}
            rest = {key: value for key, value in message[part].items() if key != "_meta"}
            message = message | {part: rest | ({"_meta": meta} if meta else {})}
    return message


def thinned(text: str, line: re.Pattern[str]) -> str:
    """The text with only some of the command's lines where many follow each other."""
    kept: list[str] = []
    run: list[str] = []

    def flush() -> None:
        few = len(run) <= LINES_MAX
        kept.extend(run if few else [*run[:2], f"… {len(run) - 3} more lines …", run[-1]])
        run.clear()

    for each in text.split("\n"):
        if line.fullmatch(each):
            run.append(each)
        else:
            flush()
            kept.append(each)
    flush()
    return "\n".join(kept)


def is_progress(entry: Any) -> bool:
    return isinstance(entry, Said) and entry.message.get("method") == "notifications/progress"


class Document:
    """Markdown, block by block."""

    def __init__(self, text: str) -> None:
        self.text = text.rstrip("\n") + "\n"
        self.steps = 0
        self.speaker: str | None = None
        self.tools: list[dict[str, Any]] | None = None

    def paragraph(self, text: str) -> None:
        self.close()
        self.text += f"\n{text}\n"

    def close(self) -> None:
        if self.speaker is not None:
            self.text += "```\n"
            self.speaker = None

    def step(self, step: Step) -> None:
        self.steps += 1
        self.paragraph(f"### {self.steps}. {step.title}\n\n{step.sentence}")

    def said(self, speaker: str, text: str) -> None:
        if self.speaker == speaker:
            self.text += "\n"
        else:
            self.paragraph(f"{speaker}:\n\n```json")
            self.speaker = speaker
        self.text += f"{text}\n"

    def play(self, tape: Tape, line: re.Pattern[str]) -> None:
        """All that is on a tape."""
        asked: dict[Any, float] = {}
        seen: set[str] = set()
        entries = tape.entries
        for nth, entry in enumerate(entries):
            if isinstance(entry, Step):
                self.step(entry)
                continue
            # Of progress, the first and the last of those that follow each other.
            if is_progress(entry) and 0 < nth < len(entries) - 1 and is_progress(entries[nth - 1]) and is_progress(entries[nth + 1]):
                if not is_progress(entries[nth - 2]):
                    more = next(more for more, later in enumerate(entries[nth:]) if not is_progress(later)) - 1
                    self.paragraph(f"*{more} more of these, and the last:*")
                continue
            message = entry.message
            if entry.speaker == CLIENT and "id" in message:
                asked[message["id"]] = entry.at
            took = entry.at - asked[message["id"]] if entry.speaker == SERVER and message.get("id") in asked else 0.0
            if took >= LONG_S:
                self.paragraph(f"*{took:.1f} s after the request:*")
            shown = in_short(message)
            if entry.speaker in seen:
                shown = without_envelope(shown)
            if ENVELOPE in json.dumps(message):
                seen.add(entry.speaker)
            self.said(entry.speaker, layout(self.by_name(shown)))
            if read := texts(message):
                self.paragraph("The model reads:")
                for text in read:
                    self.paragraph("```text\n" + thinned(text, line).rstrip("\n") + "\n```")

    def by_name(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message; tools that were shown before are shown by their names alone."""
        tools = (message.get("result") or {}).get("tools")
        if tools is None or tools != self.tools:
            self.tools = tools or self.tools
            return message
        self.paragraph("*The same tools as before, here by their names alone:*")
        return message | {"result": message["result"] | {"tools": [{"name": tool["name"]} for tool in tools]}}

    def finish(self) -> str:
        self.close()
        return self.text


def text_blocks(document: str) -> list[str]:
    """What models read in a document."""
    return re.findall(r"^```text\n(.*?)\n```$", document, re.MULTILINE | re.DOTALL)
