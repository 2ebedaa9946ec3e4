"""What lies in Ray's object store for a block of tensors, and how handles look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lightning_ding.distributed.channel import KINDS, Block, Kind
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.wire import unflatten

PARTS = {"kind", "metadata", "form", "data"}


def check_handle(handle: Any) -> tuple[Kind, str]:
    """Return the kind and the name of a handle.

    Raises:
        Refusal: If it is none (400).
    """
    if not is_handle(handle):
        raise Refusal(400, f"a handle must be {{'kind': one of {', '.join(KINDS)}, 'name': 32 hex digits}}")
    return handle["kind"], handle["name"]


def is_handle(value: Any) -> bool:
    """Return whether a value has the form of a handle."""
    if not isinstance(value, dict) or value.keys() != {"kind", "name"} or value["kind"] not in KINDS:
        return False
    name = value["name"]
    return isinstance(name, str) and len(name) == 32 and set(name) <= set("0123456789abcdef")


def handles_in(message: Any) -> list[dict[str, Any]]:
    """Return the handles in a message or an answer; they are among its values or one dict below."""
    if not isinstance(message, Mapping):
        return []
    below = [value for part in message.values() if isinstance(part, Mapping) for value in part.values()]
    return [value for value in [*message.values(), *below] if is_handle(value)]


def pack(kind: str, flat: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what lies in the object store: the bytes of every tensor, which Ray shares without copying them."""
    parts = {name: tensor.detach().cpu().contiguous() for name, tensor in flat.items()}
    data = {name: part.reshape(-1).view(torch.uint8).numpy() for name, part in parts.items()}
    form = {name: (str(part.dtype).removeprefix("torch."), tuple(part.shape)) for name, part in parts.items()}
    return {"kind": kind, "metadata": dict(metadata), "form": form, "data": data}


def unpack(kind: str, name: str, value: Any, max_bytes: int) -> Block:
    """Return a block, if ``value`` is what ``pack`` makes; its tensors are copies, which may be written to.

    Raises:
        Refusal: If it is too large (413) or something else (422).
    """
    if not isinstance(value, dict) or value.keys() != PARTS or value["kind"] != kind:
        raise Refusal(422, f"the object behind {name} is no {kind} block")
    form, data = value["form"], value["data"]
    size = sum(array.nbytes for array in data.values())
    if size > max_bytes:
        raise Refusal(413, f"the {kind} block {name} has {size} bytes, more than {max_bytes}")
    if form.keys() != data.keys():
        raise Refusal(422, f"the {kind} block {name} lacks the form or the data of a tensor")
    try:
        return Block(unflatten({part: _tensor(part, form[part], data[part]) for part in form}), value["metadata"])
    except (RuntimeError, TypeError, ValueError) as error:
        raise Refusal(422, f"the {kind} block {name} has another form: {error}") from error


def _tensor(name: str, form: tuple[str, tuple[int, ...]], array: Any) -> torch.Tensor:
    dtype, shape = form
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or array.dtype != np.uint8 or array.ndim != 1:
        raise Refusal(422, f"{name} is no tensor of bytes with a known dtype: {dtype!r}")
    expected = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if array.nbytes != expected:
        raise Refusal(422, f"{name} of {dtype} {shape} must have {expected} bytes, got {array.nbytes}")
    if not expected:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(array.copy()).view(kind).reshape(shape)  # a copy: what Ray shares is read-only
