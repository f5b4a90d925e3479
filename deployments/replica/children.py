"""A replica's two child processes: started, watched, restarted, ended.

Everything here runs on the owner's event loop, so that there are no locks. The core's death is the
owner's to handle; the loader is started again after a pause that doubles from 0.1 to 5 s, its loads
sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import engine
from deployments.replica.child import Child
from deployments.replica.load_failures import LoadFailures
from deployments.replica.loads import Loads
from deployments.replica.unread import Unread
from engine.channel import ChannelClosed
from engine.config import EngineConfig
from engine.errors import AdapterUnavailable, ErrorInfo, LoraplexError
from engine.messages import Discard, Input, Load, LoadDone, Output, Ready, Retry

log = logging.getLogger("loraplex.children")

CORE = "engine.core"
LOADER = "engine.loader"
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
MAX_FAILED_STARTS = 5  # in a row; then what waits for the loader is told so
GRACE_S = 3.0
LOADER_NICENESS = 5  # where processors are short, a load yields to the step


class StartFailed(LoraplexError):
    """The core ended before it was ready, or was not ready in time."""

    code = "core_start_failed"


class Children:
    """The core and the loader of one replica.

    on_output      called with each of the core's outputs but for its loads, which stay here
    on_core_death  called once, when a core that was ready is gone and nobody asked it to end, with
                   the ids of the requests that were sent to it and that it has not read
    core, loader   the modules to run; tests put doubles in their place
    """

    def __init__(
        self,
        config: EngineConfig,
        on_output: Callable[[Output], None],
        on_core_death: Callable[[frozenset[str]], None],
        *,
        core: str = CORE,
        loader: str = LOADER,
    ) -> None:
        self._config = config
        self._on_output = on_output
        self._on_core_death = on_core_death
        self._modules = (core, loader)
        self._loads = Loads(config.adapters.max_kills)
        self.load_failures = LoadFailures()
        self._core: Child | None = None
        self._unread: Unread
        self._loader: Child | None = None
        self._restart: asyncio.Task[None] | None = None
        self._failed_starts = 0
        self.num_restarts = 0
        """Of the loader."""
        self._closing = False
        self._host_fd = -1

    async def start(self, timeout_s: float) -> Ready:
        """Start both and wait for the core. Raises StartFailed, or the core's own complaint."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._host_fd = os.memfd_create("loraplex-host")
        os.ftruncate(self._host_fd, self._config.memory.host_bytes)
        try:
            threads = self._config.model.threads
            self._core = self._spawn(self._modules[0], threads, self._core_arrived)
            self._unread = Unread(self._core.receipts, num_sent=1)
            self._start_loader()
            return await asyncio.wait_for(self._ready, timeout_s)
        except TimeoutError:
            self.close()
            raise StartFailed(f"The core was not ready within {timeout_s:g} s.") from None
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        """By role, those that run."""
        children = {"core": self._core, "loader": self._loader}
        return {role: child.pid for role, child in children.items() if child is not None}

    @property
    def _was_ready(self) -> bool:
        """A core that complained instead has failed to start: that is `start`'s to say."""
        ready = self._ready
        return ready.done() and not ready.cancelled() and ready.exception() is None

    def submit(self, inputs: Iterable[Input]) -> None:
        """Send to the core. What is sent to a dead core is lost: `on_core_death` follows."""
        if self._core is None:
            return
        for message in inputs:
            if isinstance(message, LoadDone):
                self.load_failures.note(message)
            elif isinstance(message, Retry):
                self.load_failures.forget(message.ref.key)
            with contextlib.suppress(ChannelClosed):
                self._core.channel.send(message)
            self._unread.sent(message)

    def close(self) -> None:
        """End both, within `GRACE_S` each at the worst. Afterwards no process is left. Idempotent;
        blocks, and may be called from any thread once the loop no longer runs this object."""
        self._closing = True
        if self._restart is not None:
            self._restart.cancel()
        children = [child for child in (self._core, self._loader) if child is not None]
        self._core = self._loader = None
        for child in children:
            child.ask_to_end()
        for child in children:
            child.end(GRACE_S)
        if self._host_fd >= 0:
            os.close(self._host_fd)
            self._host_fd = -1

    # The core -----------------------------------------------------------------------------------
    def _core_arrived(self) -> None:
        core = self._core
        if core is None:
            return
        ended = core.channel.closed  # read first: what came before the end is taken below
        for message in core.channel.take():
            self._from_core(message)
        if ended and not self._closing:
            self._core = None
            if self._was_ready:
                self._on_core_death(self._unread.request_ids())
            self._burial = self._loop.create_task(self._bury_core(core))

    async def _bury_core(self, dead: Child) -> None:
        """It has closed its channel. Freeing a device takes a while, so wait for it elsewhere."""
        status = await asyncio.to_thread(dead.end, GRACE_S)
        log.error("The core ended with status %d.", status)
        if not self._ready.done():
            error = StartFailed(f"The core ended with status {status}; its log says why.")
            self._ready.set_exception(error)

    def _from_core(self, message: Output | Ready | ErrorInfo) -> None:
        match message:
            case Output():
                for load in message.loads:
                    self._load(load)
                self._discard(message.discards)
                self._on_output(message)
            case Ready() if not self._ready.done():
                self._ready.set_result(message)
            case ErrorInfo() if not self._ready.done():
                error = StartFailed(message.message, code=message.code)
                self._ready.set_exception(error)

    # The loader ---------------------------------------------------------------------------------
    def _load(self, load: Load) -> None:
        refusal = self._loads.add(load)
        if refusal is not None:
            self.submit([refusal])
        self._feed_loader()

    def _feed_loader(self) -> None:
        if self._loader is None:
            return
        with contextlib.suppress(ChannelClosed):  # its death is noticed on its own
            for load in self._loads.take():
                self._loader.channel.send(load)

    def _discard(self, discards: Iterable[Discard]) -> None:
        """What a dead loader isn't told stays on the disk until its room is needed."""
        if self._loader is not None:
            with contextlib.suppress(ChannelClosed):
                for discard in discards:
                    self._loader.channel.send(discard)

    def _loader_arrived(self) -> None:
        loader = self._loader
        if loader is None:
            return
        ended = loader.channel.closed
        for message in loader.channel.take():
            if isinstance(message, LoadDone):
                self._failed_starts = 0
                self._loads.done(message.load_id)
                self.submit([message])
        self._feed_loader()
        if ended and not self._closing:
            self._loader = None
            self._restart = self._loop.create_task(self._restart_loader(loader))

    async def _restart_loader(self, dead: Child) -> None:
        status = await asyncio.to_thread(dead.end, FIRST_PAUSE_S)
        log.error("The loader ended with status %d; %d loads wait.", status, len(self._loads))
        self.num_restarts += 1
        if refusals := self._loads.died():
            self._failed_starts = 0
            self.submit(refusals)
        while self._loader is None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                error = AdapterUnavailable("The adapter loader keeps ending; its log says why.")
                self.submit(self._loads.fail(error.info()))
            doublings = min(self._failed_starts - 1, 16)
            await asyncio.sleep(min(FIRST_PAUSE_S * 2**doublings, LONGEST_PAUSE_S))
            try:
                self._start_loader()
            except OSError as error:
                log.error("The loader can't be started: %s", error)

    def _start_loader(self) -> None:
        self._loader = self._spawn(self._modules[1], 1, self._loader_arrived, LOADER_NICENESS)
        self._loads.started()
        self._feed_loader()

    # Both ---------------------------------------------------------------------------------------
    def _spawn(
        self, module: str, threads: int, arrived: Callable[[], None], niceness: int = 0
    ) -> Child:
        return Child(
            module,
            self._config,
            self._host_fd,
            environment(threads),
            functools.partial(_call_soon, self._loop, arrived),
            niceness=niceness,
        )


def environment(threads: int) -> dict[str, str]:
    """A child's: the parent's, whatever the parent can import, threads that sleep when idle.

    Credentials of the object store and the visible devices are inherited with the rest.
    """
    ours = str(Path(next(iter(engine.__path__))).parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([ours, *filter(None, sys.path)])),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """From a channel's reader thread; a loop that has closed has nobody to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
