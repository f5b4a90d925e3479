"""Memory behind addresses that were fixed before, and an arena that takes what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.cuda_runner import CudaRunner, cuda_device
from engine.errors import DeviceMemoryShort, UnsupportedDevice
from engine.reserved_memory import ReservedMemory
from tests.support.tiny_models import make_model

MIB = 1 << 20
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_remedy_is_told():
    with pytest.raises(UnsupportedDevice, match=r"replica\.device is cuda.* serve on `cpu`"):
        cuda_device()


@pytest.mark.gpu
@needs_gpu
def test_memory_comes_later_and_the_address_stays():
    device = torch.device("cuda", 0)
    torch.cuda.init()
    memory = ReservedMemory(1 << 40, 5, device)
    start, first = memory.data.data_ptr(), memory.num_bytes
    assert first == memory.granule_bytes
    memory.data[:first].fill_(7)
    free = torch.cuda.mem_get_info()[0]
    memory.grow(100 * MIB + 1)
    assert 100 * MIB < memory.num_bytes <= 100 * MIB + memory.granule_bytes
    assert free - torch.cuda.mem_get_info()[0] >= 98 * MIB
    assert memory.data.data_ptr() == start
    # One copy each way over the seam.
    host = torch.arange(2 * MIB, dtype=torch.int64).to(torch.uint8).pin_memory()
    seam = memory.data[first - MIB : first + MIB]
    assert seam[:MIB].eq(7).all() and seam[MIB:].eq(0).all()
    seam.copy_(host, non_blocking=True)
    assert torch.equal(seam.cpu(), host)
    assert memory.data[memory.num_bytes - 1].item() == 0
    memory.grow(10)
    with pytest.raises(torch.OutOfMemoryError):
        memory.grow(1 << 40)
    assert memory.data[memory.num_bytes - 1].item() == 0


@pytest.mark.gpu
@needs_gpu
def test_an_arena_takes_its_share_and_too_little_is_refused(tmp_path):
    model = make_model(tmp_path, "qwen3", ())
    config = EngineConfig(
        ModelConfig(str(model.folder), "cuda", "float32", max_model_len=64),
        MemoryConfig(None, 0, page_tokens=4, utilisation=0.01),
        StoreConfig("file:///nowhere", "/nowhere"),
        ScheduleConfig(max_seqs=8, max_step_tokens=24, depth=1),
    )
    runner = CudaRunner.load(config, None)
    assert runner.memory is not None
    assert runner.memory.arena_bytes == runner.num_pages * runner.page_bytes
    assert runner.page(runner.num_pages - 1).count_nonzero() == 0
    runner.close()
    with pytest.raises(DeviceMemoryShort, match="GiB were free.*lower replica.max_model_len"):
        CudaRunner.load(replace(config, memory=replace(config.memory, utilisation=1e-9)), None)
