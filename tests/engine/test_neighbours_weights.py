"""No row is ever computed with another's weights, whatever lay in the place of its adapter before,
and a row that isn't finite is nobody else's matter."""

from __future__ import annotations

import pytest
import torch

from engine.messages import Load, LoadDone
from engine.types import FinishReason
from tests.support.real_engine import PAGE_TOKENS, RealEngine
from tests.support.tiny_models import ADAPTERS, make_model

LENGTH = 64
PROMPT = [7, 20, 3, 91, 5, 18, 44, 2, 60, 11, 35]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("llama"), "llama", tuple(ADAPTERS))


def room_for(model, name):
    """Pages of an arena in which this adapter is all that fits beside one longest sequence."""
    page_bytes = model.spec.kv_bytes_per_token(4) * PAGE_TOKENS
    num_bytes = model.adapters[name].layout().num_elements * 4
    return 1 + LENGTH // PAGE_TOKENS + -(-num_bytes // page_bytes)


@pytest.mark.parametrize("depth", [0, 1])
def test_what_an_evicted_adapter_left_behind_is_never_read(model, depth):
    """B-SLOT-STALE: one place; r64 on every module with embeddings and head, then r4 on q and v
    alone, r8 with a rank of its own in one layer, and back. Each answer is the oracle's."""
    engine = RealEngine(model, num_pages=room_for(model, "r64"), depth=depth, max_model_len=LENGTH)
    for turn, name in enumerate(("r64", "r4", "r64", "r8", "r4", "r64")):
        engine.submit(f"{turn}-{name}", PROMPT, name, max_tokens=6, version=turn)
        engine.submit(f"{turn}-base", PROMPT, None, max_tokens=6)
        engine.run()
    engine.check_answers()
    assert engine.engine.scheduler.stats(0.0).num_evictions >= 3


class Broken(RealEngine):
    """The weights of r8 are not numbers."""

    def _load(self, load: Load) -> LoadDone:
        done = super()._load(load)
        if load.ref.name == "r8":
            block = self.host[load.host_offset : load.host_offset + load.num_bytes]
            torch.frombuffer(block, dtype=torch.float32).fill_(torch.nan)
        return done


@pytest.mark.parametrize("depth", [0, 1])
def test_weights_that_are_not_numbers_end_their_requests_alone_and_are_refused(model, depth):
    """Five requests of the broken adapter beside others in the same batches: each ends with an
    error, the third time its tenant is told to publish sound weights, and every other row is the
    oracle's to the last bit that it ever is."""
    engine = Broken(model, num_pages=300, depth=depth, max_model_len=LENGTH)
    errors = []
    take = engine._take

    def taking(output):
        errors.extend((p.request_id, p.error) for p in output.sequences if p.error is not None)
        take(output)

    engine._take = taking
    for turn in range(5):
        engine.submit(f"bad{turn}", PROMPT[: 5 + turn], "r8", max_tokens=6, tenant="t")
        engine.submit(f"good{turn}", PROMPT[: 5 + turn], ("r4", None)[turn % 2], max_tokens=12)
    engine.run()
    engine.submit("late", PROMPT, "r8", tenant="t")
    engine.run()
    codes = {name: error.code for name, error in errors}
    assert set(codes) == {"late", *(f"bad{turn}" for turn in range(5))}
    assert codes["late"] == "adapter_quarantined" and "not_finite" in codes.values()
    message = dict(errors)["late"].message
    assert "'r8'" in message and "Publish a version whose weights are sound" in message
    for name in codes:
        assert engine.told.pop(name).finish is FinishReason.ERROR
    engine.check_answers()
