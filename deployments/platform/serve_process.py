"""What Ray Serve calls the process that this is, and its application's control."""

from __future__ import annotations

import asyncio
import os
import sys

CONTROL = "Control"
"""The name of the control deployment."""


def serve_instance() -> str:
    """What Ray Serve calls this process; its id without Serve."""
    from ray import serve  # noqa: PLC0415  so that tests of streams and children need no Ray
    from ray.serve.exceptions import RayServeException  # noqa: PLC0415

    try:
        return serve.get_replica_context().replica_id.unique_id
    except RayServeException:
        return str(os.getpid())


def serve_rank() -> int:
    """This replica's rank as Ray Serve has it now; it may change while the replica lives."""
    from ray import serve  # noqa: PLC0415  so that tests of streams and children need no Ray

    rank: int = serve.get_replica_context().rank.rank
    return rank


async def tell_control(method: str) -> None:
    """The control of the application that this process serves, and who tells it; nobody without
    Serve. Raises what Ray does."""
    if "ray.serve" not in sys.modules:  # it has not begun this process
        return
    from ray import serve  # noqa: PLC0415
    from ray.serve.exceptions import RayServeException  # noqa: PLC0415

    try:
        here = serve.get_replica_context()
    except RayServeException:
        return
    # In a thread, for it waits for Serve's controller.
    handle = await asyncio.to_thread(serve.get_deployment_handle, CONTROL, here.app_name)
    await handle.options(method_name=method).remote({"replica": here.replica_id.unique_id})
