"""What tests ask of a service on a local Ray."""

import re
import time

import httpx

from tests.support.ingress import bearer


def counted(text):
    """The positions that the fake device told, in order."""
    return [int(n) for n in re.findall(r"<(\d+)>", text)]


def replicas(url, admin_key):
    answer = httpx.get(f"{url}/v1/replicas", headers=bearer(admin_key), timeout=30)
    return answer.json()["data"]


def wait_for(condition, within_s=120):
    """How long it took until `condition()`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, "not within the time"
        time.sleep(0.02)
    return time.monotonic() - began
