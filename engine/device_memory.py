"""How a GPU's memory is shared out at a start. Pure; standard library only.

Weights, workspaces and captured graphs take what they take; of what is left then, the arena gets
`utilisation`. The rest stays free for what the driver and libraries load later.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import DeviceMemoryShort

GIB = 1 << 30
MAX_PAGES = 1 << 18
"""More would cost the host's lists and the adapter table more than they bring: it binds small
models alone, 96 GB of SmolLM2-135M's pages."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes on one GPU, as its core measured them.

    device           the GPU's name
    total_bytes      of the GPU
    free_bytes       before the core took any but for its context
    weights_bytes, workspace_bytes, graph_bytes   what each took; graphs with the code of kernels
    arena_bytes      of pages; 0 while none is mapped
    """

    device: str
    total_bytes: int
    free_bytes: int
    weights_bytes: int
    workspace_bytes: int
    graph_bytes: int
    arena_bytes: int = 0

    @property
    def left_bytes(self) -> int:
        """For the arena and what stays free."""
        taken = self.weights_bytes + self.workspace_bytes + self.graph_bytes
        return max(0, self.free_bytes - taken)

    def describe(self) -> str:
        return (
            f"{self.device}: {_gib(self.free_bytes)} of {_gib(self.total_bytes)} GiB were free;"
            f" weights take {_gib(self.weights_bytes)}, workspaces {_gib(self.workspace_bytes)},"
            f" graphs {_gib(self.graph_bytes)}"
        )


def arena_pages(memory: DeviceMemory, utilisation: float, page_bytes: int, least: int) -> int:
    """Pages of the arena that `memory` has room for.

    Raises DeviceMemoryShort, with the numbers, for fewer than `least`.
    """
    num_pages = min(int(memory.left_bytes * utilisation) // page_bytes, MAX_PAGES)
    if num_pages < least:
        raise DeviceMemoryShort(
            f"{memory.describe()}. {utilisation:g} of the {_gib(memory.left_bytes)} GiB left hold"
            f" {num_pages} pages of {page_bytes} bytes, and one longest sequence beside a page of"
            f" adapters needs {least}. {REMEDY}"
        )
    return num_pages


REMEDY = (
    "End what else uses the GPU, or lower replica.max_model_len, replica.schedule.max_seqs,"
    " replica.schedule.max_step_tokens or replica.adapters.max_rank, or take a larger GPU."
)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"
