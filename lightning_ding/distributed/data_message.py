"""What a collector says of its data: every field is checked here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed import fields
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.rows import EPISODES

LONGEST_RETURN = 1000  # steps of an n-step return


def read_metadata(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the metadata that counts, as builtins.

    Raises:
        Refusal: 400, if something is missing, or of another type or length.
    """
    metadata = fields.mapping(message, "metadata")
    returns, lengths = fields.numbers(metadata, "returns"), fields.wholes(metadata, "lengths")
    if len(returns) != len(lengths):
        raise Refusal(400, f"returns and lengths must be equally many, got {len(returns)} and {len(lengths)}")
    wait_time = fields.number(metadata, "wait_time") if "wait_time" in metadata else 0.0
    return {
        "env_step": fields.whole(metadata, "env_step"),
        "returns": returns,
        "lengths": lengths,
        "dropped_episodes": fields.wholes(metadata, "dropped_episodes", EPISODES),
        "wait_time": max(0.0, wait_time),
    }


def read_sample_options(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the buffer's ``sample`` that a learner may set.

    Raises:
        Refusal: 400, if there is another, or one out of its range.
    """
    given = fields.mapping(message, "options") if message.get("options") is not None else {}
    unknown = sorted(given.keys() - {"n_step", "discount_factor"})
    if unknown:
        raise Refusal(400, f"options must be among n_step and discount_factor, got {unknown}")
    options: dict[str, Any] = {}
    if "n_step" in given:
        options["n_step"] = fields.whole(given, "n_step", least=1)
        if options["n_step"] > LONGEST_RETURN:
            raise Refusal(400, f"n_step must be at most {LONGEST_RETURN}, got {options['n_step']}")
    if "discount_factor" in given:
        options["discount_factor"] = fields.number(given, "discount_factor")
    return options


def read_info(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a learner's info, without numbers that JSON has no name for.

    Raises:
        Refusal: 400, if there is none, or its ``learner_step``, ``learner_done`` or ``results`` are of another type.
    """
    info: dict[str, Any] = _finite(fields.mapping(message, "info"))
    fields.whole(info, "learner_step")
    fields.flag({"learner_done": False, **info}, "learner_done")
    results = fields.mapping({"results": {}, **info}, "results")
    for name, value in results.items():
        if value is not None:
            fields.number(results, name)
    return info


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_finite(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
