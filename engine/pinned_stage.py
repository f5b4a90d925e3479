"""Arrays of any length on their way to the device, through pinned memory made once.

For what only some steps need, such as the tokens of a row with penalties. What every step reads
goes through `engine.step_buffer`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from engine.batch import Array


class PinnedStage:
    """A ring of `num_slots` areas of `num_words` int64 words. `begin` takes the next one, whose
    copies of num_slots steps ago have ended; `put` fills it from its start. A step that needs more
    than an area waits for its own copies: enlarge num_words where that is ordinary."""

    def __init__(self, num_words: int, num_slots: int, device: torch.device) -> None:
        self._slots = torch.zeros(
            num_slots, num_words, dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        self._device = torch.zeros(num_words, dtype=torch.int64, device=device)
        self._slot = self._end = 0

    def begin(self, slot: int) -> None:
        self._slot, self._end = slot, 0

    def put(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """The arrays on the device, to be read before the next step's `put`. One copy.

        Raises ValueError where they are larger than an area.
        """
        need = sum(array.size for array in arrays.values())
        num_words = len(self._device)
        if need > num_words:
            raise ValueError(f"{need} words in a stage of {num_words}")
        if self._end + need > num_words:
            torch.cuda.current_stream(self._device.device).synchronize()
            self._end = 0
        start, tensors = self._end, {}
        host = self._slots[self._slot].numpy()
        for name, array in arrays.items():
            end = self._end + array.size
            host[self._end : end] = np.ascontiguousarray(array).reshape(-1).view(np.int64)
            words = self._device[self._end : end]
            dtype = torch.float64 if array.dtype == np.float64 else torch.int64
            tensors[name] = words.view(dtype).view(array.shape)
            self._end = end
        self._device[start : self._end].copy_(
            self._slots[self._slot, start : self._end], non_blocking=True
        )
        return tensors
