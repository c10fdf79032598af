"""Tries one framework against `taskwire serve`, and writes down what came of it. Needs nothing but Python.

    trial.py NAME RESULTS -- DRIVER...      one framework
    trial.py --table RESULTS NAME...        what came of them, and "N passed, M failed"

DRIVER is a program that has the framework open a connection and does what its input says, one JSON object a line: `py/driver.py` says
what that is. Everything that is checked is here, so it is the same for all of them:

list      the server's tools, and those to follow up with, become tools of the framework
quick     the result of a quick command
question  a command asks something: of the framework's user if it can show questions, else of its model by `task_answer`
slow      a command of SLOW_SECONDS (75) brought to its end as a model would, which does what each answer says
gives up  the framework gives up a call of HANGUP_SECONDS (25) and closes its connection; the command goes on, and the same
          call again joins it
again     it gives up again and again, and repeats the call on the same connection, as a stubborn model does: one run, one result
killed    the same as `gives up` with a client that is killed
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parent.parent.parent
TASKWIRE = os.environ.get("TASKWIRE_BIN", str(ROOT / "target/debug/taskwire"))
SLOW = int(os.environ.get("SLOW_SECONDS", "75"))
HANGUP = int(os.environ.get("HANGUP_SECONDS", "25"))
# The server's own default, unless the slow command is a short one: that must not end within the hold either.
HOLD_DEFAULT = 45
HOLD = max(1, min(HOLD_DEFAULT, SLOW * 45 // 75))
# The timeout of a call that the framework is to give up, where it has one; and of all others.
SHORT_TIMEOUT = 3
LONG_TIMEOUT = HOLD_DEFAULT + 60
# How long after a hang-up it is looked whether the command runs.
AFTER = min(10, HANGUP * 2 // 5)
# A framework that needs longer than this to start, or to close, has failed.
START, CLOSE = 120, 20

FOLLOWUPS = {"task_list", "task_wait", "task_output", "task_answer", "task_cancel"}
TOOLS = {"echo", "count", "deploy"}
NOT_YET = "This is not its result"
# The columns of the table.
CHECKS = ["list", "quick", "question", "slow", "gives up", "again", "killed"]

CONFIG = """\
data = "data"
hold = "{hold}s"

[[tool]]
name = "echo"
description = "Says a word"
command = ["echo", "you said {{word}}", "{{twice}}"]
input.word = {{ type = "string", description = "what to say" }}
input.twice = {{ type = "string", optional = true, description = "what to say after it" }} # some send null for what was left out

[[tool]]
name = "count"
description = "Counts seconds"
command = ["sh", "-c", '''
echo $$ >>"$2.started"
for n in $(seq "$1"); do sleep 1; echo "second $n of $1" | tee -a "$2.lines"; done
''', "count", "{{seconds}}", "{{name}}"]
progress = 'second (?<done>\\d+) of (?<total>\\d+)'
input.seconds = {{ type = "integer", minimum = 1, description = "how many" }}
input.name = {{ type = "string", description = "what it is called" }}

[[tool]]
name = "deploy"
description = "Asks where to deploy, and does"
command = ["sh", "-c", 'region=$({taskwire} ask "Which region?" --choice eu --choice us) && echo "deployed to $region"']
"""


class Failed(Exception):
    """What was found instead of what was wanted."""


class Skipped(Exception):
    """Why a check does not apply."""


def expect(held: Any, what: str) -> None:
    if not held:
        raise Failed(what)


def arguments_for(text: str, tool: str) -> dict[str, Any]:
    """The arguments with which a text says that a tool is to be called."""
    mention = re.search(rf"`{tool}` with (?=\{{)", text)
    expect(mention, f"nothing is said of `{tool}` with arguments in: {text!r}")
    return json.JSONDecoder().raw_decode(text, mention.end())[0]


class Server:
    """`taskwire serve` with a store of its own; for clients that start their servers, only what it needs for that."""

    def __init__(self, dir: Path, hold: int, stdio: bool) -> None:
        dir.mkdir(parents=True)
        self.dir, self.config, self.url, self.process = dir, dir / "taskwire.toml", None, None
        self.config.write_text(CONFIG.format(hold=hold, taskwire=TASKWIRE))
        if stdio:
            return
        self.process = subprocess.Popen(
            [TASKWIRE, "serve", "taskwire.toml", "--listen", "127.0.0.1:0"],
            cwd=dir,
            stdout=subprocess.PIPE,
            stderr=(dir / "server.log").open("w"),
            text=True,
        )
        urls = (found[0] for line in self.process.stdout if (found := re.search(r"http://\S+/mcp", line)))
        self.url = next(urls, None)
        if self.url is None:
            sys.exit(f"the server did not get ready: {dir}/server.log says why")

    def end(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # What a command left behind.

    def lines(self, name: str) -> list[str]:
        path = self.dir / f"{name}.lines"
        return path.read_text().splitlines() if path.exists() else []

    def starts(self, name: str) -> list[int]:
        path = self.dir / f"{name}.started"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def runs(self, name: str) -> bool:
        return any(Path(f"/proc/{pid}").exists() for pid in self.starts(name))

    def counted(self, name: str, seconds: int, text: str) -> None:
        """The result is that of a command that was started once and counted to its end."""
        found = re.findall(rf"second (\d+) of {seconds}\b", text)
        expect([int(n) for n in found] == list(range(1, seconds + 1)), f"the result is {text!r}")
        expect(len(self.starts(name)) == 1, f"the command was started {len(self.starts(name))} times")


class Driver:
    """A process that has the framework, and a connection."""

    def __init__(self, trial: Trial, server: Server, call_timeout: float | None) -> None:
        self.log = trial.log
        serve = [TASKWIRE, "serve", str(server.config), "--stdio"]
        options = {"url": server.url, "serve": serve, "call_timeout": call_timeout}
        self.process = subprocess.Popen(
            [*trial.command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=trial.dir,
            start_new_session=True,
        )
        self.said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.traits = self._next(START)

    def _read(self) -> None:
        # A framework may print what it likes.
        for line in self.process.stdout:
            if line.startswith("@@ "):
                self.said.put(json.loads(line[3:]))
            else:
                print(line, end="", file=self.log, flush=True)
        self.said.put(None)

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            said = self.said.get(timeout=timeout)
        except queue.Empty:
            raise Failed(f"the driver said nothing for {timeout:.0f} s") from None
        if said is None:
            last = Path(self.log.name).read_text(errors="replace").strip().splitlines()[-1:]
            raise Failed(f"the driver ended with {self.process.wait()}: {''.join(last)} ({self.log.name})")
        return said

    def ask(self, timeout: float = LONG_TIMEOUT + CLOSE, **request: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._next(timeout)

    def call(self, tool: str, **arguments: Any) -> str:
        said = self.ask(call=tool, arguments=arguments)
        expect("text" in said, f"`{tool}` with {json.dumps(arguments)}: {said.get('error')}")
        return said["text"]

    def to_the_end(self, text: str) -> tuple[str, int]:
        """The result that a model gets that does what each answer says, and how often it had to wait."""
        waits = 0
        while NOT_YET in text:
            expect("has a question" not in text, f"nobody was asked: {text!r}")
            waits += 1
            text = self.call("task_wait", **arguments_for(text, "task_wait"))
        return text, waits

    def close(self) -> bool:
        """Lets the framework close its connection; whether it did that in time."""
        try:
            self.process.stdin.close()
            self.process.wait(CLOSE)
            return True
        except (subprocess.TimeoutExpired, BrokenPipeError):
            return False
        finally:
            self.kill()

    def kill(self) -> None:
        """What is left of it; a driver may have started processes of its own."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Trial:
    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self.command = name, command
        self.dir = ROOT / "target" / "frameworks" / "runs" / name
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.mkdir(parents=True)
        self.log = (self.dir / "driver.log").open("w")
        # The first holds calls shorter if the slow command is short; calls that are given up are held as ever.
        self.servers: list[Server] = []
        self.server = self.serve("server", HOLD)
        self.traits: dict[str, Any] = {}
        self.found: dict[str, dict[str, Any]] = {}

    def serve(self, name: str, hold: int = HOLD_DEFAULT) -> Server:
        server = Server(self.dir / name, hold, self.name.endswith("-stdio"))
        self.servers.append(server)
        return server

    def end(self) -> None:
        for server in self.servers:
            server.end()
        # Commands outlive their server, as they should; those of a check that failed may wait for an answer all day.
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").resolve().is_relative_to(self.dir):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass  # it has ended, or belongs to somebody else
        self.log.close()

    # The checks.

    def list(self, driver: Driver) -> str:
        said = driver.ask(list=True)
        expect("tools" in said, str(said.get("error")))
        missing = (TOOLS | FOLLOWUPS) - set(said["tools"])
        expect(not missing, f"no tools were made of {sorted(missing)}, only of {said['tools']}")
        return f"{len(said['tools'])} tools"

    def quick(self, driver: Driver) -> str:
        text = driver.call("echo", word="hello")
        expect("you said hello" in text, f"the result is {text!r}")
        return ""

    def question(self, driver: Driver) -> str:
        text = driver.call("deploy")
        asked = driver.ask(asked=True)["asked"]
        if not self.traits["elicits"]:
            arguments = arguments_for(text, "task_answer")
            arguments["value"] = "eu"
            text = driver.call("task_answer", **arguments)
            if NOT_YET not in text:
                text = driver.call("task_wait", **arguments_for(text, "task_wait"))
        text, _ = driver.to_the_end(text)
        expect("deployed to eu" in text, f"the result is {text!r}")
        expect(asked == (1 if self.traits["elicits"] else 0), f"the framework was asked {asked} times")
        return "of the user" if asked else "of the model"

    def slow(self, driver: Driver) -> str:
        text, waits = driver.to_the_end(driver.call("count", seconds=SLOW, name="slow"))
        self.server.counted("slow", SLOW, text)
        expect(waits >= 1 or self.traits["repeats"], "it did not have to wait")
        return f"{waits} waits"

    def gives_up(self) -> str:
        traits = self.traits
        if not traits["gives_up"]:
            raise Skipped("never gives up")
        by_itself = traits["gives_up"] is not True and traits["gives_up"] < AFTER
        server = self.serve("given-up")
        driver = Driver(self, server, None if by_itself else SHORT_TIMEOUT)
        began = time.monotonic()
        said = driver.ask(call="count", arguments={"seconds": HANGUP, "name": "count"})
        took = time.monotonic() - began
        text = said.get("text", said.get("error"))
        expect(took < AFTER and f"second {HANGUP}" not in text and NOT_YET not in text, f"after {took:.1f} s: {text!r}")
        closed = driver.close()
        self.joins(server)
        return f"after {took:.0f} s" + ("" if closed else ", and does not close")

    def again(self) -> str:
        if not self.traits["gives_up"]:
            raise Skipped("never gives up")
        server = self.serve("again")
        driver = Driver(self, server, SHORT_TIMEOUT)
        try:
            for times in range(1, 2 * HANGUP // SHORT_TIMEOUT):
                said = driver.ask(call="count", arguments={"seconds": HANGUP, "name": "count"})
                text = said.get("text", said.get("error"))
                if f"second {HANGUP} of" in text:
                    server.counted("count", HANGUP, text)
                    return f"{times} calls"
            raise Failed(f"no result after {times} calls, and {len(server.starts('count'))} starts of the command: {text!r}")
        finally:
            driver.close()

    def killed(self) -> str:
        server = self.serve("killed")
        driver = Driver(self, server, LONG_TIMEOUT)
        driver.process.stdin.write(json.dumps({"call": "count", "arguments": {"seconds": HANGUP, "name": "count"}}) + "\n")
        driver.process.stdin.flush()
        deadline = time.monotonic() + START
        while not server.lines("count"):
            expect(time.monotonic() < deadline, "the command does not start")
            time.sleep(0.1)
        driver.kill()
        self.joins(server)
        return ""

    def joins(self, server: Server) -> None:
        """The command goes on although its caller has gone, and who calls again gets its one result."""
        then, before = time.monotonic(), len(server.lines("count"))
        driver = Driver(self, server, LONG_TIMEOUT)
        try:
            time.sleep(max(0, then + AFTER - time.monotonic()))
            now = server.lines("count")
            expect(server.runs("count") and len(now) > before, f"{AFTER} s later it has stopped at {now[-1:]}")
            text, _ = driver.to_the_end(driver.call("count", seconds=HANGUP, name="count"))
            server.counted("count", HANGUP, text)
        finally:
            driver.close()

    # The run.

    def check(self, name: str, run: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            found = {"check": name, "how": "PASS", "what": run()}
        except Skipped as why:
            found = {"check": name, "how": "SKIP", "what": str(why)}
        except (Failed, OSError, KeyError) as error:
            found = {"check": name, "how": "FAIL", "what": f"{error}" if isinstance(error, Failed) else repr(error)}
        self.found[name] = found
        what = found["what"] if len(found["what"]) < 1500 else found["what"][:1500] + "…"
        print(f"{found['how']} {self.name}: {name} ({time.monotonic() - began:.1f} s)" + (f": {what}" if what else ""), flush=True)

    def run(self, wanted: list[str]) -> None:
        try:
            driver = Driver(self, self.server, LONG_TIMEOUT)
        except Failed as error:
            why = str(error)

            def nothing() -> str:
                raise Failed(why)

            return [self.check(name, nothing) for name in wanted][0]
        self.traits = driver.traits
        for name, doing in [("list", self.list), ("quick", self.quick), ("question", self.question)]:
            if name in wanted:
                self.check(name, lambda doing=doing: doing(driver))
        # These mostly wait.
        slow = [("slow", lambda: self.slow(driver)), ("gives up", self.gives_up), ("again", self.again), ("killed", self.killed)]
        with ThreadPoolExecutor() as pool:
            for name, doing in slow:
                if name in wanted:
                    pool.submit(self.check, name, doing)
        driver.close()


def table(results: Path, names: list[str]) -> None:
    """What came of the frameworks that were tried; one without a result has failed."""
    rows, passed, failed = [["framework", "package", *CHECKS]], 0, 0
    for name in names:
        path = results / f"{name}.json"
        if not path.exists():
            rows.append([name, "", "nothing came of it", *[""] * (len(CHECKS) - 1)])
            failed += 1
            continue
        found = json.loads(path.read_text())
        traits, checks = found["traits"], found["checks"]
        row = [name, f"{traits.get('package', '?')} {traits.get('version', '?')}"]
        for check in CHECKS:
            how = checks.get(check, {"how": ""})["how"]
            passed += how == "PASS"
            failed += how == "FAIL"
            row.append({"PASS": "yes", "FAIL": "NO", "SKIP": "-", "": ""}[how])
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


def main() -> None:
    if sys.argv[1] == "--table":
        return table(Path(sys.argv[2]), sys.argv[3:])
    name, results, _, *command = sys.argv[1:]
    wanted = os.environ.get("CHECKS", ",".join(CHECKS)).split(",")
    if unknown := set(wanted) - set(CHECKS):
        sys.exit(f"CHECKS has {sorted(unknown)}; there are {CHECKS}")
    # So that no server is left behind when time is up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    trial = Trial(name, command)
    try:
        trial.run(wanted)
    finally:
        trial.end()
    found = {"name": name, "traits": trial.traits, "checks": trial.found}
    (Path(results) / f"{name}.json").write_text(json.dumps(found, indent=1))
    sys.exit(any(found["how"] == "FAIL" for found in trial.found.values()))


if __name__ == "__main__":
    main()
