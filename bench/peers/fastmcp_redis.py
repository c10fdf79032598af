"""FastMCP 4 with its tasks on Redis, as `taskwire-bench nodes` measures it; `setup.sh` installs what it needs.

    python fastmcp_redis.py 127.0.0.1:PORT redis://127.0.0.1:PORT/0

It speaks the protocol 2026-07-28, so the load generator sends it what it sends to Taskwire. Several of these may share one Redis. It is set
up as fast as it can be: stateless, answers as plain JSON, uvloop. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from datetime import timedelta

from fastmcp import FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

# As many as Docket runs at once by default. All others wait in Redis, and count as working.
CONCURRENCY = 10
ALWAYS = TaskConfig(mode="required", poll_interval=timedelta(seconds=1))

listen, redis = sys.argv[1:3]
host, port = listen.rsplit(":", 1)

mcp = FastMCP("fastmcp")
mcp.add_extension(TasksExtension(url=redis, concurrency=CONCURRENCY))


@mcp.tool(task=ALWAYS)
async def park() -> str:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()
    return "never"


@mcp.tool(task=ALWAYS)
async def quick() -> str:
    """Is done at once."""
    return "done"


def exit_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


threading.Thread(target=exit_with_stdin, daemon=True).start()
mcp.run(
    transport="http",
    show_banner=False,
    host=host,
    port=int(port),
    path="/mcp",
    log_level="warning",
    stateless_http=True,
    json_response=True,
    uvicorn_config={"access_log": False, "loop": "uvloop", "http": "httptools"},
)
