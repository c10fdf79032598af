"""A slow command, called by clients that know no tasks: the official Python client (`mcp`) in both eras, nothing declared.

    TASKWIRE_BIN=target/debug/taskwire python interop/py/followups.py [--seconds 12] [--hold 3] [--record FILE]

Starts `taskwire serve` with a command tool that takes so many seconds, prints a line each second and may ask something
on the way. Then it does what a program with a language model would do: it lists the tools, calls the slow one, and from then
on does what the texts say, word by word. Four clients at the same time: 2025-06-18 and 2026-07-28, by HTTP and by stdio,
each with a second connection whose client gives up a call and calls again.

`mcp` 2.3.0 offers 2025-11-25 at its handshake and has no option for another version. So the older client makes its own
`initialize` request and hands the answer to `ClientSession.adopt`, which is public; from there on the client is the same,
and checks every answer against 2025-06-18. Nothing in the package is patched.

The three-minute session in docs/traces/followups.md is made by `--seconds 180 --hold 45 --record docs/traces/followups.md`;
every other run looks whether the server still uses the words of that document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from model import Call, Model, connected, expect, same
from recorder import CLIENT, Document, Said, Tape, text_blocks

ROOT = Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "target" / "clients"
DOCUMENT = ROOT / "docs" / "traces" / "followups.md"
TASKWIRE = os.environ.get("TASKWIRE_BIN", str(ROOT / "target/debug/taskwire"))

# How many checks a run has.
CHECKS = 51
# What a call may take beyond the hold, and a machine that is busy with other things.
SLACK_S = 5.0
# A client gets progress of its call at least every so many seconds.
BEAT_S = 5.0
FOLLOWUPS = ["task_wait", "task_output", "task_answer", "task_cancel", "task_list"]
ENDING = "happy"
LINE = re.compile(r"frame \d+ of \d+, ending \w+")

CONFIG = """\
data = "{data}"
hold = "{hold}s"
inline_bytes = {page}                # output in one answer of task_output

[[tool]]
name = "render"
description = "Renders a film, one frame a second"
command = ["sh", "-c", '''
set -eu
seconds=$1 film=$2 ask=$3 ending=open
echo $$ >>"$FILMS/$film.started"
for n in $(seq "$seconds"); do
  sleep 1
  if [ "$ask" = true ] && [ "$n" -eq "$((seconds / 3))" ]; then
    ending=$(taskwire ask "Which ending shall the film have?" --choice happy --choice sad)
  fi
  echo "frame $n of $seconds, ending $ending" | tee -a "$FILMS/$film.txt"
done
''', "render", "{{seconds}}", "{{film}}", "{{ask}}"]
env = {{ FILMS = "{films}" }}
progress = 'frame (?P<done>\\d+) of (?P<total>\\d+)'
inline_bytes = 32768             # output in the result
dedupe = true                    # a call that is repeated finds the one that runs

[tool.input]
seconds = {{ type = "integer", minimum = 1, description = "how many frames" }}
film = {{ type = "string", description = "what it is called" }}
ask = {{ type = "boolean", default = false, description = "whether to ask for the ending, after a third of it" }}
"""


# The server.


@dataclass
class Setup:
    """The options, and the directory with the servers' files and the films."""

    options: argparse.Namespace
    dir: Path

    def config(self, name: str) -> Path:
        """The configuration of a server with a store of its own."""
        path = self.dir / f"{name}.toml"
        path.write_text(self.config_text(self.dir / name))
        return path

    def config_text(self, data: Path | str, films: Path | str | None = None) -> str:
        # So that one look at the output takes more than one page now and then.
        page = max(256, 16 * self.options.seconds)
        return CONFIG.format(data=data, hold=self.options.hold, page=page, films=films or self.dir)

    def starts(self, film: str) -> list[int]:
        """The processes of the command that were ever started for a film."""
        path = self.dir / f"{film}.started"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def written(self, film: str) -> str:
        return (self.dir / f"{film}.txt").read_text()

    @asynccontextmanager
    async def http(self) -> AsyncIterator[str]:
        """The address of a server."""
        with (LOGS / "followups-http.log").open("w") as log:
            command = [TASKWIRE, "serve", str(self.config("http")), "--listen", "127.0.0.1:0"]
            server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)
            try:
                async with asyncio.timeout(30):
                    url = await endpoint(server.stdout)
                yield url
            finally:
                if server.returncode is None:
                    server.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    await server.wait()

    @asynccontextmanager
    async def stdio(self, name: str) -> AsyncIterator[Any]:
        """A transport with a server of its own at its other end."""
        with (LOGS / f"followups-{name}.log").open("w") as log:
            server = StdioServerParameters(command=TASKWIRE, args=["serve", str(self.config(name)), "--stdio"])
            async with stdio_client(server, errlog=log) as streams:
                yield streams


async def endpoint(out: asyncio.StreamReader) -> str:
    async for line in out:
        if found := re.search(r"http://\S+/mcp", line.decode()):
            return found[0]
    raise AssertionError(f"the server did not get ready: {LOGS}/followups-http.log says why")


# What the clients do.


@dataclass
class Run:
    """A client that called the slow tool, and what came of it."""

    era: str
    wire: str
    asks: bool
    tape: Tape = field(default_factory=Tape)
    version: str | None = None
    tools: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    result: Call | None = None
    live: str = ""
    whole: str = ""
    pages: int = 0
    descriptions: list[str] = field(default_factory=list)
    # The second connection.
    quick: Call | None = None
    early: Call | None = None
    early_result: Call | None = None
    gave_up: MCPError | None = None
    again: list[Call] = field(default_factory=list)
    stopped: list[Call] = field(default_factory=list)
    problems: dict[str, BaseException] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.era} {self.wire}"

    @property
    def film(self) -> str:
        return f"{'metropolis' if self.era == '2025-06-18' else 'nosferatu'}-{self.wire}"


async def to_the_end(run: Run, setup: Setup, transport: Any) -> None:
    """Calls the slow tool and gets on by what the texts say."""
    seconds, hold, tape = setup.options.seconds, setup.options.hold, run.tape
    if run.era == "2026-07-28":
        tape.step("Discovery", "The client asks what the server can do. It declares no extension, and cannot be asked anything.")
    else:
        tape.step("The handshake", "The client offers 2025-06-18, which has no tasks, and declares nothing.")
    async with connected(run.era, transport, tape) as session:
        run.version = session.protocol_version
        model = Model(session, hold)
        run.calls = model.calls
        tape.step("The tools", "For a client without tasks, four tools to follow up with come after the server's own.")
        listed = (await session.list_tools()).tools
        run.tools = [tool.name for tool in listed]
        run.descriptions = [tool.description for tool in listed]
        tape.step("The call", f"It is held for {hold} s, with progress. Then its answer says how to get on.")
        arguments = {"seconds": seconds, "film": run.film} | ({"ask": True} if run.asks else {})
        said = await model.call("render", arguments)
        at: dict[str, Any] | None = None
        look = True
        while not said.is_over:
            if said.asks:
                tape.step("The answer", "The model has asked its user, and fills in the answer that the text gave it to copy.")
                said = await model.answer(said, ENDING)
            elif look:
                tape.step("A look at the output", "To have something to tell its user, the model reads what is new. Nothing is shown twice.")
                more, _, at = await model.read(at or said.arguments_for("task_wait"))
                run.live += more
            look = not look
            step = tape.step("Waiting", "It runs on: the wait is held like the call, and returns with the same words.")
            said = await model.call("task_wait", said.arguments_for("task_wait"))
            if said.asks:
                step.title, step.sentence = "Waiting, until it asks", "The client cannot be asked, so the model is."
            elif said.is_over:
                step.title, step.sentence = "Waiting, to the end", "What the command wrote, as if the call had been held all the time."
        run.result = said
        tape.running = False
        task = {"task_id": run.calls[0].arguments_for("task_wait")["task_id"]}
        if at is not None:
            more, _, at = await model.read(at)
            run.live += more
            same(at, None, "the output has an end")
        run.whole, run.pages, _ = await model.read(task)
        once_more = await model.call("task_wait", task)
        same(once_more.texts, said.texts, "the result can be had again")


async def give_up_and_repeat(run: Run, setup: Setup, transport: Any) -> None:
    """A client whose timeout is shorter than the hold calls again, and then twice at once."""
    hold = setup.options.hold
    async with connected(run.era, transport, Tape(running=False)) as session:
        model = Model(session, hold)
        run.quick = await model.call("render", {"seconds": 1, "film": f"{run.film}-short"})
        run.early = await model.call("render", {"seconds": 3, "film": f"{run.film}-early", "ask": True})
        run.early_result = await model.call("task_wait", (await model.answer(run.early, ENDING)).arguments_for("task_wait"))
        arguments = {"seconds": setup.options.seconds, "film": f"{run.film}-again"}
        try:
            await model.call("render", arguments, timeout=hold / 2)
        except MCPError as error:
            run.gave_up = error
        run.again = list(await asyncio.gather(*(model.call("render", arguments) for _ in range(2))))
        task = run.again[0].arguments_for("task_wait")
        run.stopped = [await model.call("task_cancel", task), await model.call("task_wait", task)]


async def drive(run: Run, setup: Setup, url: str) -> None:
    """Both connections of a client at the same time."""

    async def one(what: str, doing: Callable[[Run, Setup, Any], Any]) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(asyncio.timeout(1.5 * setup.options.seconds + 60))
                wire = setup.stdio(f"{run.film}-{what}") if run.wire == "stdio" else streamable_http_client(url)
                await doing(run, setup, wire)
        except BaseException as error:  # an ExceptionGroup from a task group included
            if isinstance(error, KeyboardInterrupt):
                raise
            run.problems[what] = error

    await asyncio.gather(one("end", to_the_end), one("again", give_up_and_repeat))


# What must hold of that.


def checks(run: Run, setup: Setup) -> list[tuple[str, str, Callable[[], None]]]:
    """The checks of one client: a name, the connection that they are about, and what looks."""
    seconds, hold = setup.options.seconds, setup.options.hold

    def speaks() -> None:
        same(run.version, run.era, "the version")
        for entry in run.tape.entries:
            if isinstance(entry, Said) and entry.speaker == CLIENT:
                said = json.dumps(entry.message)
                expect("extensions" not in said and "elicitation" not in said, f"the client declares something: {said}")

    def lists() -> None:
        same(run.tools, ["render", *FOLLOWUPS], "the tools")

    def held() -> None:
        first = run.calls[0]
        expect(hold - 0.5 <= first.took <= hold + SLACK_S, f"the call took {first.took:.1f} s")
        expect(not first.is_over and not first.result.is_error, first.text)
        expect("Do not call `render` again" in first.text, first.text)

    def in_time() -> None:
        longest = max(run.calls, key=lambda call: call.took)
        expect(longest.took <= hold + SLACK_S, f"`{longest.tool}` took {longest.took:.1f} s")
        waits = sum(call.tool == "task_wait" for call in run.calls)
        expect(waits >= seconds // (hold + 1), f"the model waited {waits} times only")

    def progresses() -> None:
        for call in run.calls:
            steps = [done for _, done, _ in call.progress]
            expect(steps == sorted(set(steps)), f"progress of `{call.tool}` must grow: {steps}")
            expect({total for _, _, total in call.progress} <= {None, seconds}, f"totals: {call.progress}")
            if call.tool in ("render", "task_wait"):
                at = [0.0, *(at for at, _, _ in call.progress), call.took]
                silence = max(later - earlier for earlier, later in zip(at, at[1:], strict=False))
                expect(silence <= BEAT_S + SLACK_S, f"`{call.tool}` said nothing for {silence:.1f} s")
        own = {int(done) for call in run.calls for _, done, _ in call.progress if done >= 1}
        expect(len(own) >= 0.7 * seconds, f"the command's own progress came: {sorted(own)}")

    def asked() -> None:
        answers = [call for call in run.calls if call.tool == "task_answer"]
        same(len(answers), 1, "answers")
        expect(f"frame {seconds} of {seconds}, ending {ENDING}" in run.result.text, run.result.text)

    def every_line() -> None:
        numbers = [int(line.split()[1]) for line in run.live.splitlines()]
        same(numbers, list(range(1, seconds + 1)), "the lines, read while it ran")
        same(run.live, setup.written(run.film), "the output, read while it ran")
        same(run.whole, run.live, "the output, read again from the beginning")
        expect(run.pages > 1, "the whole output takes more than one page")

    def result() -> None:
        expect(run.result.is_over and not run.result.result.is_error, run.result.text)
        same(run.result.text, setup.written(run.film), "the result")

    def started_once() -> None:
        same(len(setup.starts(run.film)), 1, "starts of the command")

    def short() -> None:
        same((run.quick.text, run.quick.result.is_error), ("frame 1 of 1, ending open\n", False), "the result")

    def early() -> None:
        expect(run.early.asks and run.early.took < hold - 0.5, f"after {run.early.took:.1f} s: {run.early.text}")
        same(run.early_result.text, setup.written(f"{run.film}-early"), "the result")

    def repeated() -> None:
        same(run.gave_up and run.gave_up.error.code, types.REQUEST_TIMEOUT, "the client gave up")
        ids = {call.arguments_for("task_wait")["task_id"] for call in run.again}
        same(len(ids), 1, "tasks of three calls")
        same(len(setup.starts(f"{run.film}-again")), 1, "starts of the command")

    def cancelled() -> None:
        cancel, wait = run.stopped
        expect(not cancel.result.is_error, cancel.text)
        expect(wait.result.is_error and "was cancelled" in wait.text, wait.text)
        (pid,) = setup.starts(f"{run.film}-again")
        deadline = time.monotonic() + SLACK_S
        while Path(f"/proc/{pid}").exists():
            expect(time.monotonic() < deadline, f"the command runs on: {pid}")
            time.sleep(0.05)

    question = ("its question goes to the model, and the answer to the command", "end", asked)
    return [
        ("speaks this version and declares nothing", "end", speaks),
        ("the follow-up tools are listed last", "end", lists),
        ("the call is held, then told how to get on", "end", held),
        ("no call takes longer than the hold", "end", in_time),
        ("progress grows, and nothing is silent for long", "end", progresses),
        *([question] if run.asks else []),
        ("every line of output once, in order", "end", every_line),
        ("the result is what the command wrote", "end", result),
        ("the command was started once", "end", started_once),
        ("a short call has its result at once", "again", short),
        ("a question within the hold is put at once", "again", early),
        ("calls after one that was given up find the running task", "again", repeated),
        ("task_cancel stops it, and no process is left", "again", cancelled),
    ]


def shape(text: str) -> str:
    """A text without what is different in each run."""
    frames = rf"(?:(?:{LINE.pattern}|… \d+ more lines …)(?:\n|$))+"
    text = re.sub(frames, "FRAMES", text.rstrip("\n"))
    text = re.sub(r"\b[0-9a-z]{24,}\b", "ID", text)
    text = re.sub(r"\b(?:\d+ h|\d+ min|\d+ s)(?: (?:\d+ min|\d+ s))?\b", "AGE", text)
    return re.sub(r"\d+(?:\.\d+)?", "N", text)


def document_check(runs: list[Run]) -> None:
    """The server's words are those of the document."""
    document = DOCUMENT.read_text()
    anew = "if that is meant: --seconds 180 --hold 45 --record docs/traces/followups.md"
    now = {shape(text) for run in runs for call in run.calls for text in call.texts}
    blocks = text_blocks(document)
    expect(len(blocks) > 10, "the document shows what the model reads")
    for block in blocks:
        expect(shape(block) in now, f"the document has a text that nobody said; {anew}\n{block}")
    shown = shape(document)
    for run in runs:
        for description in run.descriptions:
            words = shape(json.dumps(description, ensure_ascii=False))
            expect(words in shown, f"the document has another description; {anew}\n{description}")


INTRO = """\
# A three-minute tool for clients without tasks, message by message

Most clients of today know nothing of tasks, and many give up a call after a minute. Such a client calls a tool that takes
three minutes, and gets its result all the same: each call is answered within about {hold} s, and each answer tells the model what
to do next. No call is repeated, no work is done twice, nothing that the command wrote is lost.

Recorded by `interop/py/followups.py` from a real server and the official Python client, `mcp` {mcp}, unmodified, in both
eras at the same time. The package offers no version before 2025-11-25, so the older client makes its `initialize` request
by itself and hands the answer to the package. In place of a language model there is a program that looks for the tool and
the arguments in each text. The messages are as the client's transport has them; by HTTP each request is a POST, and what the
server says before its response comes as events of the same answer. A message is one line on the wire; here it is broken
into lines, its members are put in order, and a text that a model reads is cut off in its message and shown below it. Of
the command's lines, and of its progress, only some are shown, and what each message of 2026-07-28 says about its sender
(`io.modelcontextprotocol/…` in `_meta`) only once. Every run of `scripts/clients.sh` does the same with a
shorter film, and fails when the server uses other words.

The server has this configuration, but for its directories:

```toml
{config}```
"""


def record(runs: list[Run], setup: Setup, path: Path) -> None:
    config = setup.config_text(".taskwire", "films")
    document = Document(INTRO.format(hold=setup.options.hold, mcp=version("mcp"), config=config))
    for run in runs:
        if run.wire == "http":
            declares = "that declares no extension" if run.era == "2026-07-28" else "without tasks"
            document.paragraph(f"## A client of {run.era}, {declares}")
            document.play(run.tape, LINE)
    path.write_text(document.finish())
    print(f"{path} is written")


class Report:
    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, name: str, look: Callable[[], None], problem: BaseException | None = None) -> None:
        number = self.passed + self.failed + 1
        try:
            if problem is not None:
                raise problem
            look()
        except BaseException as error:  # an ExceptionGroup from a task group included
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failed += 1
            print(f"not ok {number} - {name}", flush=True)
            lines = "".join(traceback.format_exception(error)).splitlines()
            print("".join(f"  # {line}\n" for line in lines), end="", flush=True)
        else:
            self.passed += 1
            print(f"ok {number} - {name}", flush=True)


async def play(setup: Setup) -> list[Run]:
    runs = [
        Run("2025-06-18", "http", asks=False),
        Run("2026-07-28", "http", asks=True),
        Run("2025-06-18", "stdio", asks=True),
        Run("2026-07-28", "stdio", asks=False),
    ]
    async with setup.http() as url:
        await asyncio.gather(*(drive(run, setup, url) for run in runs))
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description="A slow command, called by clients that know no tasks.")
    parser.add_argument("--seconds", type=int, default=12, help="how long the command takes")
    parser.add_argument("--hold", type=int, default=3, help="how long the server holds a call")
    parser.add_argument("--record", type=Path, help="write the exchange there, as Markdown")
    options = parser.parse_args()
    if options.hold < 3 or options.seconds < 4 * options.hold:
        parser.error("a hold must take 3 s at least, and the command four of them: calls are held, given up, and repeated")
    if not os.access(TASKWIRE, os.X_OK):
        print(f"{TASKWIRE} is missing: cargo build -p taskwire-cli", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    setup = Setup(options, Path(tempfile.mkdtemp(prefix="taskwire-followups-")))
    report = Report()
    try:
        runs = asyncio.run(play(setup))
        for run in runs:
            for name, connection, look in checks(run, setup):
                report.check(f"{run.name}: {name}", look, run.problems.get(connection))
        if options.record and not report.failed:
            record(runs, setup, options.record)
        report.check("the server uses the words of docs/traces/followups.md", lambda: document_check(runs))
    finally:
        shutil.rmtree(setup.dir, ignore_errors=True)
    count = report.passed + report.failed
    print(f"1..{count}")
    print(f"{report.passed} passed, {report.failed} failed")
    if count != CHECKS:
        print(f"{count} checks were run, there must be {CHECKS}", file=sys.stderr)
        return 1
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
