"""All that a step reads from the host: one packed buffer, pinned, from a ring; one copy a step.

The device's side lies at fixed addresses, so that captured graphs find it. Parts are laid out for
the largest step; the parts that grow with the model's context come last, and only as many of their
rows are copied as a step uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt
import torch

ALIGN_BYTES = 256

Words = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of a shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class StepBuffer:
    """`device[name]` are the parts on the device; `host(slot)[name]` those of a ring slot, as numpy
    arrays. A slot may be written once the copy that last read it has ended."""

    def __init__(self, parts: Mapping[str, Part], num_slots: int, device: torch.device) -> None:
        self.parts = dict(parts)
        self._starts: dict[str, int] = {}
        end = 0
        for name, part in parts.items():
            self._starts[name] = end
            end += -(-part.num_bytes // ALIGN_BYTES) * ALIGN_BYTES
        is_gpu = device.type == "cuda"
        self._slots = torch.zeros(num_slots, end, dtype=torch.uint8, pin_memory=is_gpu)
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.device = self._views(self._device)
        self._host = [
            {name: view.numpy() for name, view in self._views(slot).items()} for slot in self._slots
        ]

    def host(self, slot: int) -> dict[str, Words]:
        return self._host[slot]

    def upload(self, slot: int, last_rows: int) -> None:
        """Enqueue the copy of a slot; of the last part, its first `last_rows` rows."""
        name, part = next(reversed(self.parts.items()))
        row_bytes = prod(part.shape[1:]) * part.dtype.itemsize
        end = self._starts[name] + last_rows * row_bytes
        self._device[:end].copy_(self._slots[slot, :end], non_blocking=True)

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        views = {}
        for name, part in self.parts.items():
            start = self._starts[name]
            words = flat[start : start + part.num_bytes].view(part.dtype)
            views[name] = words.view(part.shape)
        return views
