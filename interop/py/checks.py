"""Tiny check runner: one PASS or FAIL line per check and a summary at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

Check = Callable[[str], Awaitable[None]]


class Checks:
    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.checks: list[tuple[str, Check]] = []

    def __call__(self, name: str) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            self.checks.append((name, check))
            return check

        return register

    def legacy(self, name: str) -> Callable[[Check], Check]:
        """A 2025-11-25 check, left out with INTEROP_LEGACY=0."""
        if os.environ.get("INTEROP_LEGACY") == "0":
            return lambda check: check
        return self(name)

    async def _run(self, url: str) -> int:
        passed = failed = 0
        for name, check in self.checks:
            started = time.monotonic()
            try:
                async with asyncio.timeout(60):
                    await check(url)
            except BaseException as error:  # an ExceptionGroup from a task group included
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed += 1
                print(f"FAIL {self.suite}: {name}", flush=True)
                traceback.print_exception(error, file=sys.stdout)
            else:
                passed += 1
                print(f"PASS {self.suite}: {name} ({time.monotonic() - started:.2f} s)", flush=True)
        print(f"{passed} passed, {failed} failed", flush=True)
        return 1 if failed else 0

    def main(self) -> None:
        url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("INTEROP_URL")
        if not url:
            sys.exit(f"usage: python {sys.argv[0]} URL   (or set INTEROP_URL)")
        sys.exit(asyncio.run(self._run(url)))


def form_answer(schema: dict) -> dict:
    """A plausible answer to any form elicitation, built from its schema."""
    content: dict = {}
    for name, prop in (schema.get("properties") or {}).items():
        kind = prop.get("type")
        if kind == "boolean":
            content[name] = True
        elif kind in ("integer", "number"):
            content[name] = prop.get("minimum", 1)
        elif kind == "array":
            content[name] = []
        else:
            content[name] = (prop.get("enum") or ["interop"])[0]
    return content
