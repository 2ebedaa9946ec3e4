"""Handing nested data from every rank to every rank, without pickle.

Builtins travel as JSON and tensors as safetensors.
"""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

LENGTH_BYTES = 8


def device_of(group: Any = None) -> torch.device:
    """Return the device on which a process group works; gloo needs no accelerator."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def gather_bytes(data: bytes, group: Any = None) -> list[bytes]:
    """Return the bytes of every rank, in the order of the ranks; every rank has to call it."""
    device = device_of(group)
    length = torch.tensor([len(data)], dtype=torch.int64, device=device)
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, length, group=group)
    padded = torch.zeros(max(int(one) for one in lengths), dtype=torch.uint8, device=device)
    if data:
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=group)
    return [bytes(part[: int(size)].cpu().numpy()) for part, size in zip(parts, lengths, strict=True)]


def encode(data: Any) -> bytes:
    """Return nested dicts and lists of tensors and builtins as bytes; tuples come back as lists.

    Raises:
        TypeError: If there is anything else; the message says where.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_to_json(data, tensors, "data")).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + safetensors.torch.save(tensors)


def decode(data: bytes) -> Any:
    """Return what ``encode`` was given."""
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    return _from_json(json.loads(data[LENGTH_BYTES:end]), safetensors.torch.load(data[end:]))


def _to_json(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return a pair of what it is and what it holds, so that no data can be taken for something else."""
    if isinstance(value, dict):
        return ["dict", [[key, _to_json(below, tensors, f"{path}[{key!r}]")] for key, below in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["list", [_to_json(below, tensors, f"{path}[{i}]") for i, below in enumerate(value)]]
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["builtin", value]
    raise TypeError(f"{path} must be a tensor or a builtin to go to other ranks, got {type(value).__name__}")


def _from_json(pair: Any, tensors: dict[str, Tensor]) -> Any:
    kind, value = pair
    if kind == "dict":
        return {key: _from_json(below, tensors) for key, below in value}
    if kind == "list":
        return [_from_json(below, tensors) for below in value]
    return tensors[value] if kind == "tensor" else value
