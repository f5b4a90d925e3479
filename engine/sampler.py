"""One token a row, each with its own parameters. Row by row arithmetic: no row's draw depends on
which others are in the batch.

In order: repetition penalty (over prompt and output), presence and frequency penalties (over
output), logit_bias, then argmax where greedy, else temperature, top_k, top_p, min_p and a draw by
inverse cumulative weight with the row's own uniform number.
"""

from __future__ import annotations

import torch

from engine.batch import Sampling
from engine.rows import (
    FREQUENCY,
    MIN_P,
    PRESENCE,
    REPETITION,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

# Weights looked at first for top_p; a flatter row is sorted whole.
TOP_P_FIRST = 256


class Sampler:
    """Holds what penalties count, by row: made when a row first needs it."""

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self._shape = (max_rows, vocab_size)
        self._counts: torch.Tensor | None = None
        self._seen: torch.Tensor | None = None

    def sample(self, logits: torch.Tensor, of: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens [N] int64, failed [N] bool) for logits [N, V] float32, which it may change.

        A row with a logit that is not finite has failed; its token is 0 and means nothing.
        """
        self._begin(of)
        low, high = torch.aminmax(logits, dim=-1)
        failed = ~(torch.isfinite(low) & torch.isfinite(high))
        if bool(failed.any()):
            logits[failed] = 0
        penalised = self._penalise(logits, of)
        if len(of.bias):
            logits.index_put_(
                (of.bias_index, of.bias_token), of.bias.to(logits.dtype), accumulate=True
            )
        tokens = logits.argmax(-1)
        drawn = torch.nonzero((of.params[:, TEMPERATURE] > 0) & ~failed).squeeze(1)
        if len(drawn):
            tokens[drawn] = draw(logits[drawn], of.params[drawn], of.uniform[drawn], tokens[drawn])
        tokens.masked_fill_(failed, 0)
        if len(penalised):
            assert self._counts is not None
            self._counts[of.rows[penalised], tokens[penalised]] += 1
        return tokens, failed

    def _begin(self, of: Sampling) -> None:
        """Start the counts of penalised rows that begin, from the tokens that they have."""
        if not len(of.new_rows):
            return
        if self._counts is None or self._seen is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32)
            self._seen = torch.zeros(self._shape, dtype=torch.bool)
        self._counts[of.new_rows] = 0
        self._seen[of.new_rows] = False
        self._seen[of.new_row, of.new_token] = True
        self._counts.index_put_(
            (of.new_row, of.new_token), of.new_output.to(torch.int32), accumulate=True
        )

    def _penalise(self, logits: torch.Tensor, of: Sampling) -> torch.Tensor:
        """Apply the penalties; which of the N rows have any."""
        p = of.params
        some = (p[:, PRESENCE] != 0) | (p[:, FREQUENCY] != 0) | (p[:, REPETITION] != 1)
        index = torch.nonzero(some).squeeze(1)
        if not len(index):
            return index
        assert self._counts is not None and self._seen is not None
        rows, part, p = of.rows[index], logits[index], p[index].float()
        counts = self._counts[rows]
        repetition = p[:, REPETITION, None]
        known = self._seen[rows] | (counts > 0)
        repeated = torch.where(part < 0, part * repetition, part / repetition)
        part = torch.where(known, repeated, part)
        part -= p[:, FREQUENCY, None] * counts + p[:, PRESENCE, None] * (counts > 0)
        logits[index] = part
        return index


def draw(
    logits: torch.Tensor, params: torch.Tensor, uniform: torch.Tensor, best: torch.Tensor
) -> torch.Tensor:
    """One token for each of n rows: logits [n, V], params [n, 7], uniform [n], best [n] argmax."""
    top = logits.gather(1, best[:, None])
    weights = torch.exp((logits - top).double() / params[:, TEMPERATURE, None])
    weights = weights.masked_fill_(weights < least_weight(weights, params), 0)
    cumulative = weights.cumsum(-1)
    aim = uniform * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, aim[:, None], right=True).squeeze(1)
    return torch.where(tokens < logits.shape[1], tokens, best)


def least_weight(weights: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
    """[n, 1] the least weight that top_k, top_p and min_p keep; weights [n, V], the best being 1.

    top_k keeps the k best; top_p then the fewest of those whose share reaches it; min_p whatever
    has that part of the best's weight. Equal weights at an edge are all kept.
    """
    vocab = weights.shape[1]
    top_k, top_p = params[:, TOP_K].long(), params[:, TOP_P]
    top_k = torch.where((top_k <= 0) | (top_k > vocab), vocab, top_k)
    least = params[:, MIN_P, None].clone()
    limited = torch.nonzero((top_k < vocab) | (top_p < 1)).squeeze(1)
    if len(limited):
        edge = _edge(weights[limited], top_k[limited, None], top_p[limited, None])
        least[limited] = torch.maximum(least[limited], edge)
    return least


def _edge(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[n, 1] the least weight within top_k and top_p."""
    vocab = weights.shape[1]
    asked = torch.where(top_k < vocab, top_k, TOP_P_FIRST)
    for num in (min(vocab, int(asked.max())), vocab):
        best = torch.topk(weights, num, dim=-1).values
        cumulative = best.cumsum(-1)
        within = cumulative.gather(1, (top_k - 1).clamp(max=num - 1))
        total = torch.where(top_k <= num, within, weights.sum(-1, keepdim=True))
        # A token is kept while those before it fall short of top_p; the best always is.
        kept = (cumulative - best < top_p * total) & (torch.arange(num) < top_k)
        count = kept.sum(-1, keepdim=True).clamp(min=1)
        if num == vocab or bool(((count < num) | (top_k <= num)).all()):
            break
    return best.gather(1, count - 1)
