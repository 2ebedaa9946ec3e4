"""Transitions in DI-engine's form, one dict for each, as columns.

Shapes: B transitions, n steps of a return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from lightning_ding import nested
from lightning_ding.config import require

METADATA = frozenset(
    {
        "cur_episode",
        "cur_sample",
        "cur_step",
        "eval_flag",
        "get_data_time",
        "policy_iter",
        "priority",
        "unroll_len",
        "collect_iter",
        "use",
        "staleness",
        "replay_unique_id",
        "replay_buffer_idx",
        "IS",
        "null",
    }
)
"""Entries that are not part of a transition, but of its metadata or of the buffer."""
NEEDED = ("obs", "action", "reward")
SINGLE = "one that learns from single transitions where batches are lists of transitions, as in DI-engine"


def as_columns(batch: Sequence[Any] | Mapping[str, Any], discount_factor: float = 1.0) -> dict[str, Any]:
    """Return a batch as columns, leading axis B, in the form that policies learn from.

    Args:
        batch: Columns; or transitions, or functions that load one. A transition may have DI-engine's ``done`` in place
            of ``terminated``, and a ``reward`` of n steps, which are summed; texts and None are left out.
        discount_factor: gamma of the sum, in [0, 1].

    Raises:
        TypeError: If a transition is not a mapping.
    """
    if isinstance(batch, Mapping):
        return _converted(cast("dict[str, Any]", nested.to_tensor(dict(batch))), discount_factor, batch_axes=1)
    samples = [sample() if callable(sample) else sample for sample in batch]
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise TypeError(f"transitions must be mappings, got {type(sample).__name__}: {sample!r}")
    rows = [_converted(_numbers(sample), discount_factor, batch_axes=0) for sample in samples]
    return cast("dict[str, Any]", nested.stack(rows))


def transitions_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the transitions of a round with one minibatch, leading axes (1, B), as a list of B dicts.

    Raises:
        ValueError: If the minibatch has sequences, which a list of transitions cannot represent.
    """
    require("learn_mask" not in data, "the policy", SINGLE, "one that learns from sequences")
    return [cast("dict[str, Any]", row) for row in nested.unbind(nested.index(dict(data), 0))]


def rows_for_buffer(data: Mapping[str, Any] | Sequence[Mapping[str, Any]], policy_version: int, episode: int) -> Any:
    """Return transitions with the columns that a coordinator's buffer needs, leading axis B.

    Args:
        data: One transition, or a list of transitions that follow each other.
        policy_version: Version of the weights for a transition without ``policy_iter`` or ``collect_iter``.
        episode: ``episode_id`` of transitions that have none.

    Raises:
        ValueError: If a transition lacks an entry, such as the metadata of a file, or has several rewards.
        TypeError: If a transition is not a mapping.
    """
    samples = [data] if isinstance(data, Mapping) else list(data)
    for sample in samples:
        missing = [name for name in NEEDED if name not in sample]
        allowed = "a transition: the buffer of a coordinator stores transitions, not the names of files"
        require(not missing, "data", f"{allowed}; it lacks {missing}", sorted(sample))
        steps = torch.as_tensor(sample["reward"]).numel()
        require(steps == 1, "reward", "one number: returns of n steps are computed when sampling", sample["reward"])
    size = len(samples)
    versions = [sample.get("policy_iter", sample.get("collect_iter", policy_version)) for sample in samples]
    rows = as_columns([{name: sample[name] for name in sample if name not in METADATA} for sample in samples])
    false = torch.zeros(size, dtype=torch.bool)
    return {
        "terminated": false,
        "truncated": false,
        "env_id": torch.zeros(size, dtype=torch.int64),
        "episode_id": torch.full((size,), episode),
        "policy_version": torch.tensor(versions, dtype=torch.int64),
        **rows,
    }


def _numbers(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a transition that a policy may learn from, as tensors."""
    kept = {name: value for name, value in sample.items() if not (value is None or isinstance(value, (str, bytes)))}
    return cast("dict[str, Any]", nested.to_tensor(kept))


def _converted(sample: dict[str, Any], gamma: float, batch_axes: int) -> dict[str, Any]:
    """Return transitions with ``terminated`` in place of ``done``, and rewards of n steps summed."""
    done = sample.pop("done", None)
    if done is not None and "terminated" not in sample:
        sample["terminated"] = done.bool().squeeze(-1) if done.ndim > batch_axes else done.bool()
    gamma_n = sample.pop("value_gamma", None)
    if sample["reward"].ndim > batch_axes:
        steps = sample["reward"].shape[-1]
        powers = gamma ** torch.arange(steps, dtype=torch.float32)
        sample["reward"] = (sample["reward"] * powers).sum(-1)
        if steps > 1 and "discount" not in sample:
            shape = sample["reward"].shape
            sample["discount"] = torch.full(shape, gamma**steps) if gamma_n is None else gamma_n.reshape(shape)
    return sample
