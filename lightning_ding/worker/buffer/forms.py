"""The forms of transitions: columns inside a buffer, and lists of dicts or single dicts for those who push and sample.

Shapes: K transitions pushed, B transitions or sequences of a minibatch, T steps of a sequence, U minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from lightning_ding import nested
from lightning_ding.worker.buffer.columns import Rows, Schema

NUMBERS = ("terminated", "truncated", "done", "env_id", "episode_id", "policy_version", "collect_iter", "data_id")
"""Entries that are one number for each transition. ``priority`` and ``reward`` are too, but may have an axis of 1."""


def as_columns(data: Any, schema: Schema | None) -> Mapping[str, Any]:
    """Return pushed data as columns with a leading axis of transitions.

    The schema of the earlier transitions decides whether the data are one transition or several. Before the first push
    the number of axes of the entries decides.

    Args:
        data: Columns, one transition, a list of transitions, or a list of columns. A ``priority`` that is None is left
            out.
        schema: Schema of the transitions in the buffer; None before the first push.

    Raises:
        ValueError: If one transition cannot be distinguished from several.
        TypeError: If ``data`` is something else, or an entry does not hold numbers.
    """
    if isinstance(data, Mapping):
        one = _without_none(data)
        if not one or _has_leading_axis(one, schema):
            return one
        columns: dict[str, Any] = nested.apply(_with_leading_axis, dict(one))
        return columns
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise TypeError(f"data must be a mapping or a list of mappings, got {type(data).__name__}")
    if not len(data):
        return {}
    if not isinstance(data[0], Mapping):
        raise TypeError(
            f"data must be a mapping or a list of mappings, got a list of {type(data[0]).__name__}; an "
            "EpisodeReplayBuffer stores lists of transitions, and a buffer stores no other objects"
        )
    if data[0].get("priority", 0) is None:
        data = [_without_none(one) for one in data]
    if schema is None:
        is_of_columns = any(np.ndim(data[0][name]) for name in (*NUMBERS, "priority") if name in data[0])
    else:
        is_of_columns = schema.has_leading_axis(data[0])
    return nested.concatenate_arrays(data) if is_of_columns else nested.stack_arrays(data)  # type: ignore[no-any-return]


def _without_none(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a transition without its ``priority`` if that is None."""
    if data.get("priority", 0) is not None:
        return data
    return {name: value for name, value in data.items() if name != "priority"}


def _has_leading_axis(data: Mapping[str, Any], schema: Schema | None) -> bool:
    """Return whether a mapping holds columns, not one transition."""
    if schema is not None:
        return schema.has_leading_axis(data)
    numbers = [np.ndim(data[name]) for name in (*NUMBERS, "priority") if name in data]
    if numbers:
        return max(numbers) > 0
    reward = np.shape(data["reward"]) if "reward" in data else None
    shapes = {np.shape(leaf) for leaf in nested.leaves(dict(data))}
    is_unclear = "obs" in data and len(shapes) == 1 and len(reward or ()) == 1  # one with a reward for each of n steps?
    sizes = {np.shape(leaf)[:1] for leaf in nested.leaves(dict(data))}
    if reward == () or (reward == (1,) and sizes != {(1,)}) or (reward is None and () in sizes):
        return False  # a single transition may hold its reward with an axis of 1
    if reward is not None and (reward != (1,) or len(data) == 1) and not is_unclear:
        return True
    raise ValueError(
        "data must show whether it is one transition or several, for which it needs one of the entries "
        f"{(*NUMBERS, 'reward')} before the first push: push a list with a dict for each transition, "
        f"got entries {sorted(data)}"
    )


def _with_leading_axis(value: Any) -> Any:
    return (value if isinstance(value, Tensor) else np.asarray(value))[None]


def to_lists(batch: dict[str, Any], num_batches: int | None, n_step: int, buffer: str = "") -> list[Any]:
    """Return a sampled minibatch as a list of transitions.

    Args:
        batch: Nested tensors with leading axes (B,) or (U, B).
        num_batches: Number of minibatches U; None for a single one without the axis U.
        n_step: Number of steps of a return; if it is 1, ``discount`` is left out.
        buffer: Name of the buffer, with which ids begin.

    Returns:
        A list of B dicts, or a list of U such lists; a ``replay_unique_id`` is a string, such as ``"buffer_7"``.
    """
    from lightning_ding.worker.transitions import to_list

    if num_batches is not None:
        return [to_lists(nested.index(batch, number), None, n_step, buffer) for number in range(num_batches)]
    transitions = to_list(_without_discount(batch, n_step))
    for transition in transitions if "replay_unique_id" in batch else ():
        transition["replay_unique_id"] = f"{buffer}_{transition['replay_unique_id']}"
    return transitions


def _without_discount(batch: dict[str, Any], n_step: int) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "discount" or n_step > 1}


def to_sequences(batch: dict[str, Any], num_batches: int | None, n_step: int, is_whole: bool = False) -> list[Any]:
    """Return sampled sequences as lists of their steps.

    Args:
        batch: Nested tensors with leading axes (T, B) or (U, T, B), among them ``mask`` and ``learn_mask``.
        num_batches: Number of minibatches U; None for a single one without the axis U.
        n_step: Number of steps of a return; if it is 1, ``discount`` is left out.
        is_whole: Whether the sequences are episodes of different lengths, which are returned without the steps that
            fill them up and without masks.

    Returns:
        A list of B sequences, each a list of its steps, or a list of U such lists.
    """
    from lightning_ding.worker.transitions import to_list

    if num_batches is not None:
        return [to_sequences(nested.index(batch, number), None, n_step, is_whole) for number in range(num_batches)]
    batch = _without_discount(batch, n_step)
    lengths = batch["mask"].sum(0).tolist()
    if is_whole:
        batch = {name: value for name, value in batch.items() if name not in ("mask", "learn_mask")}
    batch = nested.apply(lambda leaf: leaf.transpose(0, 1), batch)
    of_each = [to_list(nested.index(batch, number)) for number in range(len(lengths))]
    return [steps[:length] for steps, length in zip(of_each, lengths, strict=True)] if is_whole else of_each


def to_number_ids(ids: Any, buffer: str) -> Any:
    """Return ids with strings replaced by their numbers, or by -1 if another buffer gave them.

    Args:
        ids: A tensor, an array or a list of numbers, or a list of strings as of :func:`to_lists`.
        buffer: Name of the buffer in its own ids.

    Raises:
        ValueError: If a string is not an id.

    Example:
        >>> to_number_ids(["agent_7", "expert_7"], "agent").tolist()
        [7, -1]
    """
    if not isinstance(ids, (list, tuple)) or not any(isinstance(one, str) for one in ids):
        return ids
    numbers: Rows = np.empty(len(ids), dtype=np.int64)
    for place, one in enumerate(ids):
        owner, _, number = str(one).rpartition("_")
        if not number.isdigit():
            raise ValueError(f"replay_unique_id must hold ids that sample returned, got {one!r}")
        numbers[place] = int(number) if owner == buffer else -1
    return numbers
