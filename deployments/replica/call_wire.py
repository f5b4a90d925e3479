"""What an ingress sends to a replica's `generate`.

v           the version of this format
requests    `Request.to_wire()` of each sequence
deadline_s  seconds from now to the last token
about       the client's request id (for log lines)
traceparent, tracestate  W3C's, where the request is traced
route       there alone: where the call went and why (`router.routes`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest
from engine.types import Request

CALL_VERSION = 1


def read_call(call: Mapping[str, Any]) -> tuple[list[Request], float]:
    """(requests, seconds from now to the deadline). Raises InvalidRequest for a call of another
    release, before anything of it is begun."""
    if call.get("v") != CALL_VERSION:
        raise InvalidRequest(f"Call version {call.get('v')} is not {CALL_VERSION}.")
    try:
        return [Request.from_wire(wire) for wire in call["requests"]], float(call["deadline_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The call can't be read: {error!r}.") from None
