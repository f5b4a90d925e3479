"""Shell commands at times of a run: what kills a replica, slows a store, takes a registry away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self

MAX_OUTPUT = 2000
Facts = Callable[[], Awaitable[Mapping[str, str]]]
"""What `{names}` in commands stand for, as it is at the moment."""


class FaultError(Exception):
    """A fault that can't be read; the text says how one is written."""


@dataclass(frozen=True, slots=True)
class Fault:
    """command: for the shell; `{core_pid}` and the like are filled in, see `service.pids`."""

    at_s: float
    command: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`SECONDS:COMMAND`. Raises FaultError."""
        at, colon, command = text.partition(":")
        try:
            if not colon or not command.strip():
                raise ValueError
            return cls(float(at), command.strip())
        except ValueError:
            raise FaultError(
                f"{text!r} is no fault. Write SECONDS:COMMAND, as in '30:kill -9 {{core_pid}}'."
            ) from None


@dataclass(frozen=True, slots=True)
class FaultDone:
    """at_s: when it began, from the run's start; exit_code None: it didn't run to its end."""

    at_s: float
    command: str
    exit_code: int | None
    output: str


async def inject(fault: Fault, facts: Facts, now_s: Callable[[], float]) -> FaultDone:
    """Run it now. A command that fails is told of, and the run goes on."""
    began, command = now_s(), fault.command
    if "{" in command:
        known = await facts()
        for name, value in known.items():
            command = command.replace(f"{{{name}}}", value)
    process = await asyncio.create_subprocess_shell(
        command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    text = output.decode(errors="replace")[-MAX_OUTPUT:]
    return FaultDone(round(began, 3), command, process.returncode, text)
