"""The settings that differ between a checkpoint and a policy for which its weights do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_ding.config import MARK
from lightning_ding.policy.base.normaliser import REWARD
from lightning_ding.policy.base.older_configs import to_save
from lightning_ding.policy.base.running_statistics import OBS

NETWORKS = ("model", "reward_model")
"""Sections of a config that describe networks; settings of other sections are named if these do not differ."""
NO_NETWORKS = ("collect", "eval", "other", "compile", "on_non_finite", MARK)
"""Sections and keys of a config that no network depends on."""

Difference = tuple[str, Any, Any]
"""Name of a setting, its value in the checkpoint, and its value now."""


def name_changes(policy: Any, weights: Mapping[str, Any]) -> str | None:
    """Return a message that names the settings for which the weights of a checkpoint do not fit a policy.

    Args:
        policy: The policy, which has loaded the other parts of the checkpoint.
        weights: The weights of the checkpoint, by name.

    Returns:
        One line with each setting and both values; None if no checkpoint was loaded.
    """
    saved: Mapping[str, Any] = policy.learner.own_state.saved_config
    if not saved:
        return None
    mine = policy.state_dict()
    found = [*_normalisations(weights, mine), *_of_networks(list(_differences(saved, to_save(policy))))]
    if found:
        return "; ".join(f"{name} must be {was!r}, as in the checkpoint, got {now!r}" for name, was, now in found)
    return f"the networks must be those of the checkpoint, but no setting differs: {_tensors(weights, mine)}"


def _normalisations(weights: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield what the policy normalises and the checkpoint has no statistics of."""
    for setting, part in (("norm_obs", OBS), ("norm_reward", REWARD)):
        was, now = (any(name.startswith(f"normaliser.{part}") for name in one) for one in (weights, mine))
        if now and not was:
            yield setting, was, now


def _of_networks(found: list[Difference]) -> list[Difference]:
    of_networks = [one for one in found if one[0].partition(".")[0] in NETWORKS]
    types = [one for one in of_networks if one[0] == "reward_model.type"]
    if types:  # the other keys of the section belong to the type
        return types + [one for one in of_networks if one[0].startswith("model.")]
    return of_networks or [one for one in found if one[0].partition(".")[0] not in NO_NETWORKS]


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[Difference]:
    """Yield the keys of two configs whose values differ; a section that only one of them has is skipped."""
    for key in saved.keys() & now.keys() if not path else saved.keys() | now.keys():
        was, given = saved.get(key), now.get(key)
        if isinstance(was, Mapping) and isinstance(given, Mapping):
            yield from sorted(_differences(was, given, f"{path}{key}."), key=lambda one: one[0])
        elif was != given:
            yield f"{path}{key}", was, given


def _tensors(weights: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """Return what differs between the tensors of a checkpoint and those of a policy."""
    missing, extra = sorted(mine.keys() - weights.keys()), sorted(weights.keys() - mine.keys())
    other = [name for name in mine if name in weights and weights[name].shape != mine[name].shape]
    groups = {"it has no": missing, "it also has": extra, "it has another shape of": other}
    return ", ".join(f"{words} {names[0]} (1 of {len(names)})" for words, names in groups.items() if names)
