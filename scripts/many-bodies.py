#!/usr/bin/env python3
"""Opens many connections with bodies that never end, and says how much memory the server takes meanwhile.

    taskwire serve --listen 127.0.0.1:8787 --data /tmp/x &
    scripts/many-bodies.py 8787 $!                              # 10,000 connections, 64 KiB of a body of 4 MiB on each
    scripts/many-bodies.py 8787 $! --sent 4000                  # as many bytes as need no room: none is refused
    scripts/many-bodies.py 8787 $! --what heads --sent 15000    # heads that never end, instead
    scripts/many-bodies.py 8787 $! --what nothing

A small request is made beside them each second, and must be served. Linux only.
"""

import argparse
import json
import resource
import selectors
import socket
import time

ANNOUNCED = 4 << 20


def resident(pid: int) -> float:
    """MiB of memory that the process has."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def head(length: int, *lines: str) -> bytes:
    common = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*common, *lines, "", ""]).encode()


def opening(what: str, sent: int) -> bytes:
    """All that is ever sent on one of the connections."""
    if what == "heads":
        return b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"x" * sent
    return head(ANNOUNCED) + b" " * sent if what == "bodies" else b""


def is_served(port: int) -> bool:
    """Whether a small request is."""
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).encode()
    lines = ["Accept: application/json, text/event-stream", "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list", "Connection: close"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head(len(body), *lines) + body)
        return connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--what", choices=["bodies", "heads", "nothing"], default="bodies")
    parser.add_argument("--sent", type=int, default=64 << 10, help="bytes on each connection")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

    text = opening(options.what, options.sent)
    before = peak = resident(options.pid)
    selector, open_now, answered, cut, unserved = selectors.DefaultSelector(), 0, 0, 0, 0
    begin = looked = time.monotonic()
    left = options.connections
    while time.monotonic() - begin < options.seconds or left:
        for _ in range(min(left, 100)):
            connection = socket.create_connection(("127.0.0.1", options.port))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if text else 0), memoryview(text))
            left, open_now = left - 1, open_now + 1
        for key, events in selector.select(timeout=0.05):
            connection, rest = key.fileobj, key.data
            try:
                if events & selectors.EVENT_READ:
                    answered += bool(connection.recv(4096))
                    raise ConnectionResetError
                rest = rest[connection.send(rest) :]
                selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0), rest)
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(connection)
                connection.close()
                open_now, cut = open_now - 1, cut + 1
        peak = max(peak, resident(options.pid))
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            unserved += not is_served(options.port)
    print(f"{options.connections} connections, {options.what}, {options.sent} bytes on each")
    print(f"still open {open_now}, ended {cut}, of which answered {answered}; small requests that were not served: {unserved}")
    print(f"VmRSS {before:.1f} MiB before, {peak:.1f} MiB at most, {resident(options.pid):.1f} MiB now")
    return 1 if unserved else 0


if __name__ == "__main__":
    raise SystemExit(main())
