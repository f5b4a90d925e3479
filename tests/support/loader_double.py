"""A loader for tests of the processes around it: `python -m tests.support.loader_double`.

It loads nothing. An adapter named `killer` ends it at once; one named `held` is answered when the
file that its uri names exists; any other at once. Discarding one deletes the file that its uri
names.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from engine.adapters.layout import AdapterLayout
from engine.channel import Channel
from engine.child import attach
from engine.messages import Discard, Load, LoadDone
from engine.timeline import LoadStep


def answer(channel: Channel, load: Load) -> None:
    layout = AdapterLayout((), load.ref.num_elements)
    now = time.monotonic()
    steps = (LoadStep("fetch", now - 0.01, now - 0.005), LoadStep("verify", now - 0.005, now))
    done = LoadDone(load.load_id, load.ref.key, layout, None, 0.01, from_disk=False, steps=steps)
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
