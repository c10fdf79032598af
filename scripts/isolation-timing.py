#!/usr/bin/env python3
"""Measures whether the time of an answer tells another caller's task from one that never was.

    scripts/isolation-timing.py target/release/taskwire
    scripts/isolation-timing.py target/release/taskwire --store postgres://USER:PASSWORD@HOST/DATABASE

Starts a server in which Ann has a task that runs and one that has ended with much output. Bob asks in turns for her task and for an id
that never was, on one connection. Printed are both medians, and how often her task took longer than the other id (Mann and Whitney): 50 %
is what chance gives. `chance` is how far from 50 % two samples of this size are by chance alone, in 99 of 100 runs.
"""

import argparse
import http.client
import json
import math
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CONFIG = """
listen = "127.0.0.1:{port}"
data = "{data}"
store = "{store}"
[auth]
tokens = [{{ token = "ann-token-of-the-measure", caller = "ann" }}, {{ token = "bob-token-of-the-measure", caller = "bob" }}]
[[tool]]
name = "runs"
description = "Runs for long"
command = ["sleep", "600"]
task = "always"
[[tool]]
name = "ends"
description = "Writes much"
command = ["seq", "1", "20000"]
task = "always"
"""
ALL = {"extensions": {name: {} for name in ("io.modelcontextprotocol/tasks", "dev.taskwire/partials")}}
WAYS = {
    "tasks/get": lambda task: ("tasks/get", {"taskId": task}),
    "tasks/cancel": lambda task: ("tasks/cancel", {"taskId": task}),
    "tasks/update": lambda task: ("tasks/update", {"taskId": task, "inputResponses": {}}),
    "a read of output": lambda task: ("dev.taskwire/partials/read", {"taskId": task}),
    "output as a resource": lambda task: ("resources/read", {"uri": f"taskwire://task/{task}/output"}),
}


class Caller:
    """A caller on one connection."""

    def __init__(self, port: int, name: str):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.token = f"{name}-token-of-the-measure"

    def asks(self, method: str, params: dict) -> tuple[dict, float]:
        """The answer, and the microseconds that it took."""
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": ALL}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}})
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
            "Authorization": f"Bearer {self.token}",
        }
        name = params.get("name") or params.get("uri") or params.get("taskId")
        if name:
            headers["Mcp-Name"] = name
        begin = time.perf_counter_ns()
        self.connection.request("POST", "/mcp", body, headers)
        answer = self.connection.getresponse().read()
        return json.loads(answer), (time.perf_counter_ns() - begin) / 1000

    def starts(self, tool: str) -> str:
        answer, _ = self.asks("tools/call", {"name": tool, "arguments": {}})
        return answer["result"]["taskId"]

    def wait(self, task: str, status: str) -> None:
        while self.asks("tasks/get", {"taskId": task})[0]["result"]["status"] != status:
            time.sleep(0.05)


def longer(ones: list[float], others: list[float]) -> float:
    """How often one of the first is longer than one of the others, in percent."""
    ranked = sorted([(value, 0) for value in ones] + [(value, 1) for value in others])
    ranks = sum(rank for rank, (_, which) in enumerate(ranked, 1) if which == 0)
    return 100 * (ranks - len(ones) * (len(ones) + 1) / 2) / (len(ones) * len(others))


def measure(bob: Caller, ask, task: str, times: int) -> str:
    unknown = task[:-1] + ("1" if task[-1] == "0" else "0")
    took: dict[str, list[float]] = {task: [], unknown: []}
    for turn in range(times + times // 10):
        # Each is first in every second turn.
        for which in [task, unknown] if turn % 2 else [unknown, task]:
            answer, micros = bob.asks(*ask(which))
            assert "error" in answer, answer
            if turn >= times // 10:
                took[which].append(micros)
    theirs, nobodys = (statistics.median(took[which]) for which in (task, unknown))
    chance = 100 * 2.576 * math.sqrt((2 * times + 1) / (12 * times * times))
    return f"{theirs:9.1f} µs {nobodys:9.1f} µs {longer(took[task], took[unknown]):7.1f} %   ±{chance:.1f}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until_ready(port: int, server: subprocess.Popen) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("the server ended before it listened")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--store", default="", help="the URL of a database, or memory:")
    parser.add_argument("--times", type=int, default=1000, help="requests for each of the two ids")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        port, config = free_port(), pathlib.Path(place, "taskwire.toml")
        config.write_text(CONFIG.format(port=port, data=os.path.join(place, "data"), store=options.store), encoding="utf-8")
        config.chmod(0o600)
        server = subprocess.Popen([options.binary, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until_ready(port, server)
            ann, bob = Caller(port, "ann"), Caller(port, "bob")
            running, ended = ann.starts("runs"), ann.starts("ends")
            ann.wait(ended, "completed")
            print(f"{'':36} another's   never there   longer   chance")
            for name, ask in WAYS.items():
                for state, task in (("running", running), ("ended", ended)):
                    print(f"{name + ', ' + state:32} {measure(bob, ask, task, options.times)}")
            ann.asks("tasks/cancel", {"taskId": running})
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    main()
