"""The `taskwire` command against public task servers: rmcp, FastMCP and the TypeScript SDK.

    TASKWIRE_BIN=target/debug/taskwire RMCP_SERVER=target/debug/examples/rmcp_server python3 interop/servers.py [SUITE…]

Starts every server on a free port of the loopback interface or lets `taskwire` start it (stdio), and prints a line
"ok N - …" or "not ok N - …" for each check. Fails if a check did, or if there were not as many as there must be.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LOGS = ROOT / "target" / "servers"
TASKWIRE = os.environ.get("TASKWIRE_BIN", str(ROOT / "target/debug/taskwire"))
RMCP = os.environ.get("RMCP_SERVER", str(ROOT / "target/debug/examples/rmcp_server"))

# A command that has not ended by then never will.
TIMEOUT_S = 60
ENDED_WITH = {"result": 0, "isError": 1, "usage": 2, "protocol": 3, "cancelled": 4, "failed": 5}
TOOLS = {"quick", "held", "slow", "ask", "ask_held", "ask_twice", "endless", "broken", "fault"}

# How many checks a run of all suites has.
CHECKS = 116


def expect(held: Any, what: str) -> None:
    if not held:
        raise AssertionError(what)


def same(found: Any, wanted: Any, what: str) -> None:
    expect(found == wanted, f"{what}: {found!r} instead of {wanted!r}")


def text(result: dict) -> str:
    return "".join(block.get("text", "") for block in result["content"])


# The command.


@dataclass
class Ran:
    """A command that has ended."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]

    def ended(self, code: int) -> Ran:
        shown = f"{shlex.join(self.args)}\n{self.out}{self.err}"
        expect(self.code == code, f"exit code {self.code} instead of {code} of: {shown}")
        return self

    def said(self, wanted: str) -> Ran:
        """The last event is a result with this text."""
        last = self.events[-1]
        same((last["event"], text(last["result"])), ("result", wanted), "the last event")
        return self


class Running:
    """A command that runs, with `--json`; its events are read as they come."""

    def __init__(self, args: tuple[str, ...], env: dict[str, str]) -> None:
        self.args = args
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [TASKWIRE, *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, text=True
        )
        self.lines: list[str] = []
        self.more = threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self.more:
                self.lines.append(line)
                self.more.notify_all()
        with self.more:
            self.more.notify_all()

    def until(self, what: str, wanted: Callable[[dict], Any], after: int = 0) -> dict:
        """The first event from number `after` on that is wanted."""
        deadline = time.monotonic() + TIMEOUT_S
        with self.more:
            while True:
                for line in self.lines[after:]:
                    event = json.loads(line)
                    if wanted(event):
                        return event
                left = deadline - time.monotonic()
                if left <= 0 or not self.reader.is_alive():
                    self.stop()
                    raise AssertionError(f"no {what} from {shlex.join(self.args)}: {self.wait()}")
                self.more.wait(min(left, 0.5))

    def task(self) -> str:
        return self.until("task", lambda event: event["event"] == "task")["taskId"]

    def question(self, message: str) -> dict:
        return self.until(f"question {message!r}", lambda event: event["event"] == "input" and event["message"] == message)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()

    def wait(self) -> Ran:
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            code = self.process.wait()
        self.reader.join(TIMEOUT_S)
        self.err.seek(0)
        return Ran(self.args, code, "".join(self.lines), self.err.read())


class Cli:
    """The command, with a state directory of its own."""

    def __init__(self, home: Path) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "RUST_BACKTRACE") if name in os.environ}
        self.env = kept | {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "TASKWIRE_STATE_DIR": str(home / "state"),
        }
        self.started: list[Running] = []

    def start(self, *args: str) -> Running:
        running = Running(args, self.env)
        self.started.append(running)
        return running

    def stop(self) -> None:
        """Ends what a check that failed has left running."""
        while self.started:
            self.started.pop().stop()

    def run(self, *args: str, code: int = 0) -> Ran:
        try:
            ran = subprocess.run(
                [TASKWIRE, *args], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired as late:
            output = [(part or b"").decode(errors="replace") for part in (late.stdout, late.stderr)]
            raise AssertionError(f"no end of: {shlex.join(args)}\n{''.join(output)}") from None
        return Ran(args, ran.returncode, ran.stdout, ran.stderr).ended(code)

    def at_terminal(self, args: tuple[str, ...], answers: dict[str, str]) -> str:
        """Runs it at a terminal, types an answer when its prompt is shown, and gives everything that was shown."""
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        process = subprocess.Popen(
            [TASKWIRE, *args],
            env=self.env | {"TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        left = dict(answers)
        shown = b""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while time.monotonic() < deadline:
                if not select.select([screen], [], [], 0.2)[0]:
                    continue
                try:
                    read = os.read(screen, 4096)
                except OSError:  # how Linux says that the other side is closed
                    break
                if not read:
                    break
                shown += read
                line = re.split(r"[\r\n]", plain(shown))[-1]
                for prompt in [prompt for prompt in left if prompt in line and line.rstrip().endswith((":", "]"))]:
                    os.write(screen, f"{left.pop(prompt)}\r".encode())
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        finally:
            os.close(screen)
        text_shown = plain(shown)
        expect(not left, f"never asked for {list(left)}:\n{text_shown}")
        same(code, 0, f"the exit code of {shlex.join(args)}\n{text_shown}")
        return text_shown


def plain(shown: bytes) -> str:
    """What was shown, without colours and movements of the cursor."""
    return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78])", "", shown.decode(errors="replace"))


# The servers.


@dataclass
class Server:
    """How a server is started. It says "listening URL", or speaks on its standard streams."""

    name: str
    era: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    stdio: bool = False
    # Sends the progress of a task as it comes.
    sends_progress: bool = False


class Peer:
    """A server that runs, and the command that is used with it."""

    all: list[Peer] = []

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.era = server.era
        self.cli = Cli(home)
        self.process: subprocess.Popen | None = None
        Peer.all.append(self)
        if server.stdio:
            # `taskwire` starts it, and passes its environment on.
            self.cli.env |= server.env
            self.url = f"stdio:{shlex.join(server.argv)}"
            return
        log = LOGS / f"{server.name}.log"
        with log.open("w") as output:
            self.process = subprocess.Popen(
                server.argv, env=os.environ | server.env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"^listening (\S+)$", log.read_text(), re.MULTILINE)
            if found:
                self.url = found[1]
                return
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"{server.name} does not listen: {log.read_text()}")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    # Options stand first, and `--` behind them: an id may begin with a hyphen.

    def call(self, tool: str, *values: str, code: int = 0, options: tuple[str, ...] = ("--json",)) -> Ran:
        return self.cli.run("call", *options, "--", self.url, tool, *values, code=code)

    def start(self, tool: str, *values: str) -> Running:
        return self.cli.start("call", "--json", "--", self.url, tool, *values)

    def detach(self, tool: str, *values: str) -> str:
        return self.call(tool, *values, options=("--detach",)).out.strip()

    def get(self, task: str) -> dict:
        return json.loads(self.cli.run("get", "--json", "--", task).out)

    def until_status(self, task: str, status: str) -> dict:
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            got = self.get(task)
            if got["status"] == status:
                return got
            time.sleep(0.1)
        raise AssertionError(f"the task never became {status}: {got}")

    def answer(self, question: dict, *values: str, code: int = 0, how: tuple[str, ...] = ()) -> Ran:
        return self.cli.run("answer", *how, "--", question["taskId"], question["key"], *values, code=code)


# The checks. Each has a server that nobody else uses at that time.


def kinds(ran: Ran) -> set[str]:
    return {event["event"] for event in ran.events}


def progress(ran: Ran) -> list[tuple[float, float]]:
    return [(event["progress"], event["total"]) for event in ran.events if "progress" in event]


def lists_tools(peer: Peer) -> None:
    listed = peer.cli.run("tools", "--json", "--", peer.url).events
    same({tool["name"] for tool in listed}, TOOLS, "the tools")


def is_answered_at_once(peer: Peer) -> None:
    ran = peer.call("quick", "name=Ada").said("Hello, Ada!")
    same(kinds(ran), {"result"}, "the events")
    same(peer.call("quick", "name=Ada", options=()).out, "Hello, Ada!\n", "the output")


def knows_what_it_does_not_know(peer: Peer) -> None:
    peer.call("qwick", "name=Ada", code=ENDED_WITH["usage"])
    peer.call("quick", "nmae=Ada", code=ENDED_WITH["usage"])
    peer.cli.run("get", "--", f"{peer.url}#nope", code=ENDED_WITH["protocol"])


def shows_the_progress_of_a_held_call(peer: Peer) -> None:
    ran = peer.call("held", "steps=3").said("3 steps taken")
    same(progress(ran), [(1, 3), (2, 3), (3, 3)], "the progress")
    expect("task" not in kinds(ran), f"it became a task: {ran.out}")


def follows_a_task(peer: Peer) -> None:
    ran = peer.call("slow", "steps=4").said("4 steps taken")
    first = ran.events[0]
    same((first["event"], first["era"], first["tool"]), ("task", peer.era, "slow"), "the first event")
    same([event["event"] for event in ran.events].count("task"), 1, "how often it was named")
    messages = [event["message"] for event in ran.events if event["event"] == "status" and "status" in event and event.get("message")]
    steps = [message for at, message in enumerate(messages) if message not in messages[:at]]
    expect(len(steps) >= 2 and steps == sorted(steps), f"the status messages: {messages}")
    if peer.server.sends_progress:
        same(progress(ran), [(1, 4), (2, 4), (3, 4), (4, 4)], "the progress")
    ran = peer.call("slow", "steps=1", options=())
    same(ran.out, "1 steps taken\n", "the output")
    expect(re.search(r"^taskwire: task \S+$", ran.err, re.MULTILINE), f"the task is not named: {ran.err}")


def comes_back_to_a_detached_task(peer: Peer) -> None:
    task = peer.detach("slow", "steps=12")
    got = peer.get(task)
    same((got["taskId"], got["status"], got["tool"], got["era"]), (task, "working", "slow", peer.era), "the task")
    watched = peer.cli.run("watch", "--json", "--", task).said("12 steps taken")
    same((watched.events[0]["event"], watched.events[0]["taskId"]), ("task", task), "the first event")
    got = peer.get(f"{peer.url}#{task}")
    same((got["status"], text(got["result"])), ("completed", "12 steps taken"), "the ended task")
    listed = {known["taskId"]: known for known in peer.cli.run("tasks", "--json", "--all").events}
    same((listed[task]["status"], listed[task]["server"]), ("completed", peer.url), "the task in the list")


def survives_its_own_death(peer: Peer) -> None:
    running = peer.start("slow", "steps=16")
    task = running.task()
    running.signal(signal.SIGKILL)
    running.wait()
    peer.cli.run("watch", "--json", "--", task).said("16 steps taken")


def runs_five_at_once(peer: Peer) -> None:
    running = [peer.start("slow", "steps=3") for _ in range(5)]
    for each in running:
        each.wait().ended(0).said("3 steps taken")
    same(len({each.task() for each in running}), 5, "the tasks")


def answers_a_question_from_elsewhere(peer: Peer) -> None:
    running = peer.start("ask")
    question = running.question("Who are you?")
    same((question["kind"], question["taskId"]), ("form", running.task()), "the question")
    same(set(question["schema"]["properties"]), {"name", "age", "color"}, "the form")
    refused = peer.answer(question, "name=Ada", "age=-1", "color=red", code=ENDED_WITH["usage"])
    expect("age" in refused.err, f"the field is not named: {refused.err}")
    peer.answer(question, "name=Ada", "age=36", "color=red")
    ran = running.wait().ended(0).said("Ada, 36, red")
    same([event["event"] for event in ran.events].count("input"), 1, "how often it was asked")
    peer.answer(question, "name=Bob", "age=1", "color=red", code=ENDED_WITH["usage"])


def declines_a_question(peer: Peer) -> None:
    running = peer.start("ask")
    peer.answer(running.question("Who are you?"), how=("--decline",))
    running.wait().ended(0).said("no answer: decline")


def answers_two_questions(peer: Peer) -> None:
    running = peer.start("ask_twice")
    # Two at once, or one after the other.
    peer.answer(running.question("First?"), "ok=true")
    peer.answer(running.question("Second?"), "ok=false")
    ran = running.wait().ended(0).said("true false")
    same([event["event"] for event in ran.events].count("input"), 2, "how often it was asked")


def answers_a_detached_task(peer: Peer) -> None:
    task = peer.detach("ask")
    got = peer.until_status(task, "input_required")
    if peer.era == "modern":
        (question,) = got["inputs"]
        peer.answer(question | {"taskId": task}, '{"name": "Eve", "age": 7, "color": "green"}')
        peer.cli.run("watch", "--json", "--", task).said("Eve, 7, green")
        return
    # There a question is sent to whoever waits for the result.
    watching = peer.cli.start("watch", "--json", "--", task)
    peer.answer(watching.question("Who are you?"), '{"name": "Eve", "age": 7, "color": "green"}')
    watching.wait().ended(0).said("Eve, 7, green")


FORM = {"Name": "Ada", "Age": "", "Color": "green", "Send?": ""}


def asks_at_the_terminal(peer: Peer) -> None:
    shown = peer.cli.at_terminal(("call", "--", peer.url, "ask"), FORM)
    expect("Ada, 30, green" in shown, shown)


def asks_at_the_terminal_before_there_is_a_task(peer: Peer) -> None:
    shown = peer.cli.at_terminal(("call", "--", peer.url, "ask_held"), FORM)
    expect("Ada, 30, green" in shown, shown)


def cancels_a_question_that_nobody_can_answer(peer: Peer) -> None:
    ran = peer.call("ask_held", options=("--json",))
    expect(text(ran.events[-1]["result"]).startswith("no answer: cancel"), ran.out)


def cancels_from_elsewhere(peer: Peer) -> None:
    running = peer.start("endless")
    task = running.task()
    peer.cli.run("cancel", "--", task)
    ran = running.wait().ended(ENDED_WITH["cancelled"])
    last = ran.events[-1]
    same((last["event"], last["kind"], last["taskId"]), ("error", "cancelled", task), "the last event")
    same(peer.get(task)["status"], "cancelled", "the status")
    # It has ended: there is nothing left to cancel, and that is no error.
    peer.cli.run("cancel", "--", task)


def cancels_when_interrupted(peer: Peer) -> None:
    running = peer.cli.start("call", "--json", "--cancel-on-interrupt", "--", peer.url, "endless")
    running.task()
    running.signal(signal.SIGINT)
    ran = running.wait().ended(ENDED_WITH["cancelled"])
    same((ran.events[-1]["event"], ran.events[-1]["kind"]), ("error", "cancelled"), "the last event")


def cancels_a_task_that_asks(peer: Peer) -> None:
    running = peer.start("ask")
    running.question("Who are you?")
    peer.cli.run("cancel", "--", running.task())
    running.wait().ended(ENDED_WITH["cancelled"])


def shows_the_error_of_a_tool(peer: Peer) -> None:
    ran = peer.call("broken", code=ENDED_WITH["isError"]).said("it broke")
    same(ran.events[-1]["isError"], True, "isError")
    same(peer.call("broken", code=ENDED_WITH["isError"], options=()).out, "it broke\n", "the output")


def shows_the_failure_of_a_task(peer: Peer) -> None:
    last = peer.call("fault", code=ENDED_WITH["failed"]).events[-1]
    same((last["event"], last["kind"]), ("error", "failed"), "the last event")
    if peer.era == "modern":
        found = (last["code"], last["message"], last["data"])
        same(found, (-32050, "out of order", {"part": 7}), "the error")
    else:
        # The message is the task's: what is sent as the error says only that there is no result.
        expect("out of order" in last["message"], f"the message: {last}")


def speaks_the_other_era(peer: Peer) -> None:
    if peer.era == "legacy":
        peer.call("quick", "name=Ada", options=("--json", "--era", "modern"), code=ENDED_WITH["protocol"])
        return
    # Both servers have tasks only in the modern era: there the call is held.
    ran = peer.call("slow", "steps=2", options=("--json", "--era", "legacy")).said("2 steps taken")
    same(progress(ran), [(1, 2), (2, 2)], "the progress")
    expect("task" not in kinds(ran), f"it became a task: {ran.out}")


Check = Callable[[Peer], None]

EVERYWHERE: list[Check] = [
    lists_tools,
    is_answered_at_once,
    follows_a_task,
    cancels_when_interrupted,
    shows_the_error_of_a_tool,
]
# A task lives on while the command does not.
REMOTE: list[Check] = [
    *EVERYWHERE,
    comes_back_to_a_detached_task,
    survives_its_own_death,
    runs_five_at_once,
    cancels_from_elsewhere,
    shows_the_failure_of_a_task,
    speaks_the_other_era,
    knows_what_it_does_not_know,
]
# Questions can be sent.
ASKING: list[Check] = [
    shows_the_progress_of_a_held_call,
    asks_at_the_terminal,
    asks_at_the_terminal_before_there_is_a_task,
    cancels_a_question_that_nobody_can_answer,
]
ASKING_REMOTE: list[Check] = [
    *ASKING,
    answers_a_question_from_elsewhere,
    declines_a_question,
    answers_two_questions,
    answers_a_detached_task,
    cancels_a_task_that_asks,
]


def suites() -> list[list[tuple[Server, list[Check]]]]:
    """What is run at the same time, and in each of these the servers one after the other."""
    node = HERE / "node_modules/node/bin/node"
    javascript = [str(node if node.exists() else "node"), str(HERE / "ts/legacy-server.mjs")]
    own = HERE / ".venv/bin/python"
    python = [str(own if own.exists() else sys.executable), "-B", str(HERE / "py/fastmcp_server.py")]
    path = {} if own.exists() else {"PYTHONPATH": str(HERE / ".py")}
    whole = REMOTE + ASKING_REMOTE
    local = EVERYWHERE + ASKING
    return [
        [
            (Server("rmcp", "modern", [RMCP]), whole),
            (Server("rmcp-stdio", "modern", [RMCP, "--stdio"], stdio=True), local),
        ],
        [
            (Server("fastmcp", "modern", python, path), whole),
            (Server("fastmcp-stdio", "modern", [*python, "--stdio"], path, stdio=True), local),
        ],
        [
            (Server("typescript", "legacy", javascript, sends_progress=True), whole),
            (Server("typescript-stdio", "legacy", [*javascript, "--stdio"], stdio=True, sends_progress=True), local),
            (Server("typescript-json", "legacy", [*javascript, "--json"]), REMOTE),
            (Server("typescript-resumable", "legacy", [*javascript, "--resumable"], sends_progress=True), EVERYWHERE + ASKING_REMOTE),
        ],
    ]


# Running them.


class Report:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.passed = 0
        self.failed = 0

    def add(self, name: str, seconds: float, error: BaseException | None) -> None:
        with self.lock:
            self.passed += error is None
            self.failed += error is not None
            print(f"{'not ok' if error else 'ok'} {self.passed + self.failed} - {name} ({seconds:.1f} s)")
            if error is not None:
                message = str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))
                print("\n".join(f"#   {line}" for line in message.splitlines()))
            sys.stdout.flush()


def name(server: Server, check: Check) -> str:
    return f"{server.name}: {check.__name__.replace('_', ' ')}"


def run(server: Server, checks: list[Check], report: Report) -> None:
    home = Path(tempfile.mkdtemp(prefix=f"{server.name}-"))
    try:
        peer = Peer(server, home)
    except (AssertionError, OSError) as error:
        for check in checks:
            report.add(name(server, check), 0, error)
        shutil.rmtree(home, ignore_errors=True)
        return
    try:
        for check in checks:
            began = time.monotonic()
            failure = None
            try:
                check(peer)
            except Exception as error:  # whatever went wrong is a failed check
                failure = error
            peer.cli.stop()
            report.add(name(server, check), time.monotonic() - began, failure)
    finally:
        peer.stop()
        shutil.rmtree(home, ignore_errors=True)


def give_up(number: int, _frame: Any) -> None:
    for peer in Peer.all:
        peer.cli.stop()
        if peer.process is not None and peer.process.poll() is None:
            peer.process.kill()
    os._exit(128 + number)


def main() -> int:
    wanted = set(sys.argv[1:])
    chosen = [[suite for suite in group if not wanted or suite[0].name in wanted] for group in suites()]
    unknown = wanted - {server.name for group in chosen for server, _ in group}
    if unknown:
        print(f"there is no suite {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if not os.access(TASKWIRE, os.X_OK):
        print(f"{TASKWIRE} is missing: cargo build -p taskwire-cli", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, give_up)
    report = Report()

    def run_all(group: list[tuple[Server, list[Check]]]) -> None:
        for server, checks in group:
            run(server, checks, report)

    threads = [threading.Thread(target=run_all, args=(group,)) for group in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count = report.passed + report.failed
    wanted_count = sum(len(checks) for group in chosen for _, checks in group)
    print(f"1..{count}")
    print(f"{report.passed} passed, {report.failed} failed")
    if count != wanted_count or (not wanted and count != CHECKS):
        print(f"{count} checks were run, there must be {CHECKS if not wanted else wanted_count}", file=sys.stderr)
        return 1
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
