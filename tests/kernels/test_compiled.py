"""Every kernel of a pass compiles for the GPUs that we serve on, with no GPU at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

KERNELS = {
    *("shrink_kernel", "lookup_kernel", "expand_kernel", "_residual", "_rotary", "_gate"),
    *("_weigh", "_gather", "_norm_rows", "_attend", "_combine"),
    *("_sample", "_add", "_clear", "_count", "_move"),
}
MOST_SHARED = {80: 99 << 10, 90: 227 << 10}
"""Bytes that a block may have. Consumer cards of Ampere and Ada have less than an A100."""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_and_fit(capability: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.compiled_kernels", str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kernel"] for each in found} == KERNELS
    assert max(each["shared"] for each in found) <= MOST_SHARED[capability], found
