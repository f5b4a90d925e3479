"""What Ray Serve calls the process that this is."""

from __future__ import annotations

import os


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
