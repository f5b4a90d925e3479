"""Children by themselves: a parent that is killed leaves none, one that closes leaves none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.replica.children import Children, StartFailed
from engine.messages import Output, Submit
from tests.support.replicas import LOADER, alive, engine_config, request, until

PARENT = """
import asyncio, sys
from pathlib import Path
from deployments.replica.children import Children
from engine.messages import Submit
from tests.support.replicas import LOADER, engine_config, request

async def main():
    children = Children(engine_config(Path(sys.argv[1])), lambda output: None, lambda unread: None,
                        loader=LOADER)
    await children.start(30)
    children.submit([Submit(request(max_tokens=4000))])
    print(children.pids["core"], children.pids["loader"], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_sigkill_of_the_parent_leaves_no_child(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    # Both children hold the parent's stdout, so its end of file is their end.
    assert parent.stdout.read() == ""
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not any(alive(pid) for pid in pids)


async def test_children_inherit_nothing_but_what_they_are_given(tmp_path: Path) -> None:
    extra = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(extra, True)
    outputs: list[Output] = []
    children = Children(engine_config(tmp_path), outputs.append, lambda unread: None, loader=LOADER)
    try:
        ready = await children.start(30)
        assert ready.num_pages > 0
        for pid in children.pids.values():
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert str(tmp_path) not in links
            assert sum(link.startswith("socket:") for link in links) == 1
        environment = Path(f"/proc/{children.pids['core']}/environ").read_bytes().split(b"\0")
        assert b"OMP_NUM_THREADS=1" in environment and b"OMP_WAIT_POLICY=PASSIVE" in environment
        children.submit([Submit(request())])
        await until(lambda: any(s.finish for o in outputs for s in o.sequences))
    finally:
        pids = list(children.pids.values())
        await asyncio.to_thread(children.close)
        children.close()
        os.close(extra)
    assert children.pids == {} and not any(alive(pid) for pid in pids)


async def test_a_core_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    """The double loader in the core's place never says that it is ready."""
    children = Children(
        engine_config(tmp_path),
        lambda output: None,
        lambda unread: None,
        core=LOADER,
        loader=LOADER,
    )
    starting = asyncio.create_task(children.start(0.5))
    await asyncio.sleep(0)  # it has begun, and so both
    pids = list(children.pids.values())
    assert len(pids) == 2
    with pytest.raises(StartFailed, match="within 0.5 s"):
        await starting
    assert not any(alive(pid) for pid in pids)


async def test_a_core_that_complains_and_ends_has_failed_to_start_and_not_died(
    tmp_path: Path,
) -> None:
    """So its complaint is told, and not overtaken by the end of the replica's process."""
    config = engine_config(tmp_path)
    config = replace(config, memory=replace(config.memory, arena_bytes=1 << 16))
    deaths: list[frozenset[str]] = []
    children = Children(config, lambda output: None, deaths.append, loader=LOADER)
    starting = asyncio.create_task(children.start(30))
    await asyncio.sleep(0)
    # Complaint and end are there together when the loop looks.
    os.waitid(os.P_PID, children.pids["core"], os.WEXITED | os.WNOWAIT)
    with pytest.raises(StartFailed, match="Enlarge arena_bytes"):
        await starting
    assert children.pids == {} and not deaths
