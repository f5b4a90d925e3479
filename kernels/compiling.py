"""Compiles kernels ahead of their first launch, each once, in several processes.

`Compilers.compile` looks at what is launched, without launching it; afterwards every kernel is in
this process or in Triton's cache on disk. Up to a third of the compiler's time has the
interpreter's lock, hence processes. They need seconds to start, hence a few threads here too: they
begin at once, do everything where no process comes up, and where the cache has everything they are
done before a process is. What nobody could compile is left to its launch, which says why.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels import tile

log = logging.getLogger("loraplex.kernels")

MOST_PROCESSES = 16
"""Each takes 300 to 400 MB, half of them its own, and, before it is of use, two to four seconds of
a core."""
THREADS = 4
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container's limit of processors is, if it has one."""
DONE = "done"
"""What a process answers where it has compiled a kernel, see `kernels.compiler`."""
NOTED = object()
"""Stands for a kernel that is noted already, where Triton looks for it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is compiled for a launch: module.kernel, and Triton's words for its arguments' types and
    alignment, its constants and options."""

    module: str
    kernel: str
    words: str

    def compile(self) -> None:
        """Into this process and Triton's cache on disk, unless the cache has it."""
        compiled = getattr(import_module(self.module), self.kernel).preload(self.words)
        if hasattr(nvidia, "make_launcher"):
            # Up to Triton 3.6 a launch goes through a module of its types' own, which is compiled
            # from C.
            nvidia.CudaLauncher(compiled.src, compiled.metadata)


@contextlib.contextmanager
def noting(*told: Callable[[Launch], object]) -> Iterator[None]:
    """Calls `told` with what is launched meanwhile and isn't compiled yet, once each. No launch
    has any effect."""
    taken: list[tuple[dict[str, Any], str]] = []

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        for tell in told:
            tell(Launch(fn.module, fn.name, compile["specialization_data"]))
        compiled = fn.jit_function.device_caches[compile["device"]][0]
        compiled[key] = NOTED
        taken.append((compiled, key))
        return True

    run, hook = JITFunction.run, knobs.runtime.jit_cache_hook

    def look_up(self: Any, *args: Any, warmup: bool, **constants: Any) -> Any:
        return run(self, *args, warmup=True, **constants)

    JITFunction.run, knobs.runtime.jit_cache_hook = look_up, note
    try:
        yield
    finally:
        JITFunction.run, knobs.runtime.jit_cache_hook = run, hook
        for compiled, key in taken:
            del compiled[key]


def settle_keys() -> None:
    """Give what kernels share its keys in Triton's cache, so that processes agree on kernels'.

    Which constants a kernel's key covers depends on whether the functions that it calls had keys
    before; and then the key depends on which kernel a process came to first. (Constants of
    a module, that is: while no function of `tile` uses one, keys agree by themselves.) To be called
    ahead of every launch.
    """
    for function in vars(tile).values():
        if isinstance(function, JITFunction):
            function.cache_key  # noqa: B018


def num_cores(quota: Path = QUOTA) -> int:
    """Whole cores that this process may use, by its affinity and its container's quota; >= 1."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota
        time_us, period_us = map(int, quota.read_text().split())
        cores = min(cores, time_us // period_us)
    return max(1, cores)


class Compilers:
    """Processes for the kernels of the present GPU, one for each core by default. They start now
    and are of use later; whoever made them closes them. num_threads: here, at least one."""

    def __init__(self, num_processes: int | None = None, num_threads: int = THREADS) -> None:
        if num_processes is None:
            num_processes = min(num_cores(), MOST_PROCESSES)
        settle_keys()
        self._num_threads = num_threads
        self._left: queue.Queue[Launch | None] = queue.Queue()
        self._processes: list[subprocess.Popen[str]] = []
        of = driver.active.get_current_target()
        target = json.dumps((of.backend, of.arch, of.warp_size))
        command = [sys.executable, "-m", "kernels.compiler", target]
        pipe = subprocess.PIPE
        try:
            while len(self._processes) < num_processes:
                started = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
                self._processes.append(started)
        except OSError as error:
            log.warning("Only %d processes compile kernels: %s", len(self._processes), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, also those that are still starting. Idempotent."""
        for process in self._processes:
            process.kill()
        while self._processes:
            self._processes.pop().communicate()

    def compile(self, launch: Callable[[], None]) -> None:
        """Compile what `launch` launches. Once: the processes are closed with it.

        Everything else that `launch` does is done, without what our kernels would have written, so
        its inputs must be harmless then too.
        """
        started = time.perf_counter()
        noted: list[Launch] = []
        done: list[Launch] = []
        num_processes = len(self._processes)
        threads = [
            threading.Thread(target=self._hand_over, args=(process, done))
            for process in self._processes
        ]
        here = [threading.Thread(target=self._work) for _ in range(self._num_threads)]
        try:
            for thread in threads:
                thread.start()
            with noting(noted.append, self._left.put):
                launch()
            looked = time.perf_counter()
            # Not before: while launches are noted, nothing is compiled in this process.
            for thread in here:
                thread.start()
                threads.append(thread)
            self._left.join()
        finally:
            self._end(threads)
        log.info(
            "Found %d kernels in %.1f s; compiled, or read from the cache, in %.1f s more,"
            " %d of them by %d processes.",
            len(noted),
            looked - started,
            time.perf_counter() - looked,
            len(done),
            num_processes,
        )

    def _end(self, threads: list[threading.Thread]) -> None:
        """End processes and threads, whatever is left to them."""
        for process in self._processes:
            process.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                self._left.get_nowait()
        for _ in threads:
            self._left.put(None)
        for thread in threads:
            thread.join()
        self.close()

    def _work(self) -> None:
        """Compile here what is left."""
        for launch in self._taken():
            with contextlib.suppress(Exception):  # raised again where it is launched
                launch.compile()

    def _hand_over(self, process: subprocess.Popen[str], done: list[Launch]) -> None:
        """Have what is left compiled by a process, from when it is ready."""
        launches, answers = process.stdin, process.stdout
        assert launches is not None
        assert answers is not None
        if not answers.readline():
            return
        for launch in self._taken():
            try:
                print(json.dumps(astuple(launch)), file=launches, flush=True)
            except OSError:
                return
            answer = answers.readline().strip()
            if answer == DONE:
                done.append(launch)
            elif not answer:
                return

    def _taken(self) -> Iterator[Launch]:
        """What is left, one after another, until there will be no more."""
        while (launch := self._left.get()) is not None:
            try:
                yield launch
            finally:
                self._left.task_done()
