"""Adapters as publishing inspects them: from their config and their file's header alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import save

from engine.adapters.peft import read_config
from engine.adapters.tensorfile import TensorInfo
from engine.adapters.validate import Inspection, inspect
from engine.model.spec import BackboneSpec
from tests.support.peft_folders import peft_config


def header(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorInfo]:
    raw = save(dict(tensors))
    length = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + length])
    return {
        name: TensorInfo(e["dtype"], tuple(e["shape"]), *e["data_offsets"])
        for name, e in entries.items()
    }


def look(spec: BackboneSpec, tensors: Mapping[str, torch.Tensor], **changes: Any) -> Inspection:
    config = read_config(json.dumps(peft_config(**changes)).encode())
    return inspect(config, header(tensors), spec.modules)
