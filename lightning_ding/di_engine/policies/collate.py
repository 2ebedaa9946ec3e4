"""Lists of dicts as batches and back, under DI-engine's names.

Shapes: B batch, N steps of a return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require

KEPT = ("prev_state", "prev_actor_state", "prev_critic_state")  # states of RNNs, which stay as they are
IGNORED = ("collate_ignore",)


def default_collate(batch: Sequence[Any], cat_1dim: bool = True, ignore_prefix: Sequence[str] = IGNORED) -> Any:
    """Return B items of equal structure as one, with a leading axis B in each tensor.

    Args:
        batch: Tensors, arrays, numbers, or mappings and sequences of them. Strings and None stay a list.
        cat_1dim: Join tensors of shape (1,) to (B,), not to (B, 1).
        ignore_prefix: Start of the keys whose values stay a list.

    Raises:
        ValueError: If there are no items.
        TypeError: If an item has an unsupported type.

    Example:
        >>> default_collate([{"obs": torch.zeros(3), "reward": torch.tensor([1.0])}] * 2)["reward"]
        tensor([1., 1.])
    """
    require(len(batch) > 0, "batch", "at least one item", batch)
    first = batch[0]
    if isinstance(first, (Tensor, np.ndarray)):
        tensors = [torch.as_tensor(item) for item in batch]
        return torch.cat(tensors) if cat_1dim and tensors[0].shape == (1,) else torch.stack(tensors)
    if isinstance(first, (bool, int, np.generic)):
        return torch.as_tensor(np.asarray(batch))
    if isinstance(first, float):
        return torch.tensor(batch, dtype=torch.float32)
    if first is None or isinstance(first, str):
        return list(batch)
    if isinstance(first, Mapping):
        columns = {key: [item[key] for item in batch] for key in first}
        is_kept = {key: str(key).startswith(tuple(ignore_prefix)) for key in columns}
        return {key: items if is_kept[key] else default_collate(items, cat_1dim) for key, items in columns.items()}
    if isinstance(first, Sequence):
        parts = [default_collate(items, cat_1dim) for items in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    allowed = "a tensor, an array, a number, a mapping or a sequence"
    raise TypeError(f"an item must be {allowed}, got {type(first).__name__}")


def default_decollate(batch: Any, ignore: Sequence[str] = KEPT) -> list[Any]:
    """Return the B items of a batch; those of a tensor of shape (B,) have the shape (1,).

    Args:
        batch: A tensor, or a mapping or sequence of tensors, with leading axis B.
        ignore: Keys of a mapping whose values are sequences of B items already.

    Raises:
        TypeError: If ``batch`` has an unsupported type.

    Example:
        >>> default_decollate({"action": torch.tensor([1, 0])})
        [{'action': tensor([1])}, {'action': tensor([0])}]
    """
    if isinstance(batch, Tensor):
        return list(batch.split(1)) if batch.ndim == 1 else list(batch.unbind())
    if isinstance(batch, torch.distributions.Distribution):
        return [None] * batch.batch_shape[0]
    if isinstance(batch, Mapping):
        parts = {key: value if key in ignore else default_decollate(value) for key, value in batch.items()}
        return [dict(zip(parts, items, strict=True)) for items in zip(*parts.values(), strict=True)]
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return list(zip(*map(default_decollate, batch), strict=True))
    raise TypeError(f"batch must be a tensor, a mapping or a sequence, got {type(batch).__name__}")


def default_preprocess_learn(
    data: Sequence[Any],
    use_priority_IS_weight: bool = False,  # noqa: N803 - DI-engine's name
    use_priority: bool = False,
    use_nstep: bool = False,
    ignore_done: bool = False,
) -> dict[str, Any]:
    """Return a minibatch of a list of samples.

    Args:
        data: B samples with at least ``action``, ``reward`` and ``done``.
        use_priority_IS_weight: Take the importance-sampling weights, ``priority_IS`` or ``IS``, as ``weight``; needs
            ``use_priority``.
        use_priority: Whether the samples were drawn by priority.
        use_nstep: Return the rewards of N steps with shape (N, B), or (N, B, agents), from (B, N) or (B, agents, N).
        ignore_done: Set ``done`` to 0.

    Returns:
        The columns of the samples: ``done`` (B,) as floats; ``reward`` (B,) without ``use_nstep``; ``weight`` (B,), or
        None if there are no weights; ``value`` and ``adv`` (B,), where there are any.

    Raises:
        ValueError: If there are no samples, or an argument or the shape of the rewards does not fit.
        KeyError: If weights are asked for and missing.
    """
    require(len(data) > 0, "data", "at least one sample", data)
    allowed = "False without use_priority"
    require(use_priority or not use_priority_IS_weight, "use_priority_IS_weight", allowed, use_priority_IS_weight)
    action = data[0]["action"]
    is_discrete = isinstance(action, (Tensor, np.ndarray)) and torch.as_tensor(action).dtype == torch.int64
    batch: dict[str, Any] = default_collate(data, cat_1dim=is_discrete)
    done = batch["done"].float()
    batch["done"] = torch.zeros_like(done) if ignore_done else done
    for name in ("value", "adv", "done"):
        if name in batch:
            batch[name] = _without_last_axis(batch[name])
    if use_priority_IS_weight:
        batch["weight"] = batch["priority_IS"] if "priority_IS" in batch else batch["IS"]
    batch.setdefault("weight", None)
    batch["reward"] = _steps_first(batch["reward"]) if use_nstep else _without_last_axis(batch["reward"])
    return batch


def _without_last_axis(column: Tensor) -> Tensor:
    return column.squeeze(-1) if column.ndim == 2 and column.shape[1] == 1 else column


def _steps_first(reward: Tensor) -> Tensor:
    require(reward.ndim <= 3, "reward", "of the shape (B,), (B, N) or (B, agents, N)", tuple(reward.shape))
    return (reward.unsqueeze(1) if reward.ndim == 1 else reward).movedim(-1, 0).contiguous()


def single_env_forward_wrapper(forward: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function from the observation of one env to its action, as an array.

    Args:
        forward: ``forward`` of a collect or eval mode.
    """

    def act(obs: Any) -> Any:
        output = forward({0: nested.to_tensor(obs)})
        return nested.apply(lambda action: np.asarray(nested.to_numpy(action)).squeeze(), output[0]["action"])

    return act
