"""A loader for tests of the processes around it: `python -m tests.support.loader_double`.

It loads nothing. An adapter named `killer` ends it at once; one named `held` is answered when the
file that its uri names exists; for one named `missing` that file is the object: without it the
load fails. Any other is answered at once. Discarding one deletes the file that its uri
names.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from engine.adapters.layout import AdapterLayout
from engine.adapters.store import ObjectMissing
from engine.channel import Channel
from engine.child import attach
from engine.messages import Discard, Load, LoadDone
from engine.timeline import LoadStep


def answer(channel: Channel, load: Load) -> None:
    layout: AdapterLayout | None = AdapterLayout((), load.ref.num_elements)
    error = None
    if load.ref.name == "missing" and not Path(load.ref.uri).exists():
        layout, error = None, ObjectMissing("The object store has no object of it.").info()
    now = time.monotonic()
    steps = (LoadStep("fetch", now - 0.01, now - 0.005), LoadStep("verify", now - 0.005, now))
    done = LoadDone(load.load_id, load.ref.key, layout, error, 0.01, from_disk=False, steps=steps)
    channel.send(done)


def main() -> None:
    channel = attach().channel
    held: list[Load] = []
    while not channel.closed:
        for load in channel.take():
            if isinstance(load, Discard):
                Path(load.ref.uri).unlink(missing_ok=True)
            elif load.ref.name == "killer":
                os.kill(os.getpid(), signal.SIGKILL)
            elif load.ref.name == "held":
                held.append(load)
            else:
                answer(channel, load)
        for load in [x for x in held if Path(x.ref.uri).exists()]:
            held.remove(load)
            answer(channel, load)
        channel.wait(0.01 if held else None)


if __name__ == "__main__":
    main()
