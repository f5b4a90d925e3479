"""The arena in a GPU's memory: of a given size, or of what is left when all else has its own."""

from __future__ import annotations

import dataclasses

import torch

from engine.adapters.layout import ALIGN
from engine.config import EngineConfig
from engine.device_memory import MAX_PAGES, DeviceMemory, arena_pages
from engine.errors import UnsupportedModel
from engine.model.spec import BackboneSpec
from engine.reserved_memory import ReservedMemory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class DeviceArena:
    """pages [n, elements] at an address that stays. Where the config leaves the size to the GPU, n
    is the most there can be until `settle`, and only page 0 may be touched. taken_bytes: of the
    GPU's memory before that.

    Raises UnsupportedModel for an arena that can't be served.
    """

    def __init__(self, config: EngineConfig, spec: BackboneSpec, device: torch.device) -> None:
        memory, dtype = config.memory, DTYPES[config.model.dtype]
        self._config = config
        self.page_bytes = memory.page_tokens * spec.kv_bytes_per_token(dtype.itemsize)
        elements = self.page_bytes // dtype.itemsize
        self._reserved: ReservedMemory | None = None
        if memory.arena_bytes is None:
            num_pages = min(torch.cuda.mem_get_info(device)[0] // self.page_bytes, MAX_PAGES)
        else:
            num_pages = memory.num_pages(self.page_bytes)
        if num_pages < 2 or elements % ALIGN:
            raise UnsupportedModel(
                f"memory.arena_bytes {memory.arena_bytes} holds {num_pages} pages of "
                f"{elements} elements: at least 2 pages of a multiple of {ALIGN} are needed"
            )
        if memory.arena_bytes is None:
            num_bytes = num_pages * self.page_bytes
            self._reserved = ReservedMemory(num_bytes, self.page_bytes, device)
            self.pages = self._reserved.data[:num_bytes].view(dtype).view(num_pages, elements)
            self.taken_bytes = self._reserved.num_bytes
        else:
            self.pages = torch.zeros(num_pages, elements, dtype=dtype, device=device)
            self.taken_bytes = num_pages * self.page_bytes

    def settle(self, memory: DeviceMemory) -> DeviceMemory:
        """Once everything else has its memory: from here on every page may be touched. Returns
        `memory` with the arena in it.

        Raises DeviceMemoryShort where a longest sequence and an adapter's page don't fit.
        """
        config = self._config
        if self._reserved is not None:
            longest = -(-config.model.max_model_len // config.memory.page_tokens)
            num_pages = arena_pages(memory, config.memory.utilisation, self.page_bytes, longest + 2)
            num_pages = min(num_pages, len(self.pages))
            self._reserved.grow(num_pages * self.page_bytes)
            self.pages = self.pages[:num_pages]
        return dataclasses.replace(memory, arena_bytes=len(self.pages) * self.page_bytes)
