"""Sampling on a device without ever asking it anything.

Parameters travel in the step buffer and `choose` is captured: it serves rows that take the best
token and rows that draw alike. What penalties count is kept on the device by row; a row's known
tokens are entered when its sequence begins. Biases are added to the logits first, on steps that
have any. Both are kernels of ours, which allocate nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from engine.batch import Array
from engine.pinned_stage import PinnedStage
from engine.plan import Span, StepPlan
from engine.rows import RowTable
from engine.step_buffer import Words
from kernels.biases import add_biases
from kernels.sampling import sample
from kernels.token_counts import clear_rows, count_tokens

ENTRY_WORDS = 3
"""Words of a known token of a penalised row: row, token, whether it is an output."""
MAX_ENTERED = 1 << 18
"""Such tokens of one step; a step with more waits for its own copies."""
BIAS_WORDS = 3
MAX_BIASES = 1024
"""Bias entries that travel together."""
NOBODY = np.array([-1], np.int64)
BEST_TOKEN = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
"""Parameters, by `engine.rows`, of a row that takes the best token."""


class DeviceSampler:
    """last [rows + 1] int64: the last token drawn of each row, and a place for padding.
    result [N] int64: what a step drew, -1 where the row failed.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, max_len: int, num_slots: int, device: torch.device
    ) -> None:
        self.last = torch.zeros(max_rows + 1, dtype=torch.int64, device=device)
        self.result = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._rows = RowTable(max_rows)
        # Padding has a row of its own here too.
        shape = (max_rows + 1, vocab_size)
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self._seen = torch.zeros(shape, dtype=torch.bool, device=device)
        self._max_len = max_len
        num_entered = max(max_len, min(max_rows * max_len, MAX_ENTERED))
        num_words = max_rows + ENTRY_WORDS * num_entered + BIAS_WORDS * MAX_BIASES
        self._stage = PinnedStage(num_words, num_slots, device)
        self._biases: dict[str, Array] = {}

    def prepare(self, logits: torch.Tensor) -> None:
        """Launch once what is launched between graphs, to no effect: that compiles it. logits
        [N, V] are those of the steps to come."""
        self._enter(dict.fromkeys(("new_rows", "new_row", "new_token", "new_output"), NOBODY))
        self._biases = dict.fromkeys(("bias_index", "bias_token"), NOBODY) | {"bias": np.zeros(1)}
        self.add_biases(logits)

    def begin(
        self, plan: StepPlan, sampled: Sequence[Span], into: Mapping[str, Words], slot: int
    ) -> None:
        """Enter the plan's new rows, and write the parameters of the spans that sample to `params`
        [N, 7] and `uniform` [N] of a step buffer, padded to the end. `slot` of the ring is free."""
        self._stage.begin(slot)
        self._enter(self._rows.begin(plan))
        arrays = self._rows.sampling(list(sampled))
        num = len(sampled)
        into["params"][:num] = arrays["params"]
        into["params"][num:] = BEST_TOKEN
        into["uniform"][:num] = arrays["uniform"]
        self._biases = {name: arrays[name] for name in ("bias_index", "bias_token", "bias")}

    def add_biases(self, logits: torch.Tensor) -> None:
        """Add the step's biases to its logits [N, V]."""
        for start in range(0, len(self._biases["bias"]), MAX_BIASES):
            of = self._stage.put(
                {name: array[start : start + MAX_BIASES] for name, array in self._biases.items()}
            )
            add_biases(logits, of["bias_index"], of["bias_token"], of["bias"])

    def choose(
        self,
        logits: torch.Tensor,
        params: torch.Tensor,
        uniform: torch.Tensor,
        rows: torch.Tensor,
    ) -> None:
        """A token for each of logits [N, V], to `result` and to `last` at its row."""
        drawn = self.result[: len(rows)]
        sample(logits, params, uniform, rows, self._counts, self._seen, drawn)
        self.last.index_put_((rows,), drawn.clamp(min=0))

    def _enter(self, new: Mapping[str, Array]) -> None:
        """Start the counts of penalised rows that begin, from the tokens that they have."""
        if not len(new["new_rows"]):
            return
        rows = self._stage.put({"rows": new["new_rows"]})["rows"]
        clear_rows(rows, self._counts, self._seen)
        for start in range(0, len(new["new_row"]), self._max_len):
            of = self._stage.put(
                {
                    name: new[name][start : start + self._max_len]
                    for name in ("new_row", "new_token", "new_output")
                }
            )
            count_tokens(of["new_row"], of["new_token"], of["new_output"], self._counts, self._seen)
