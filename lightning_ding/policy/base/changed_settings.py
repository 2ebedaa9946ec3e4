"""The settings that differ between a checkpoint and the run that loads it: those of networks, and of optimizers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import Trainer
from torch.optim import Optimizer

from lightning_ding.config import MARK
from lightning_ding.policy.base.config import to_save
from lightning_ding.policy.base.normaliser import REWARD
from lightning_ding.policy.base.optimizers import Settings, settings_of
from lightning_ding.policy.base.running_statistics import OBS

logger = logging.getLogger(__name__)


NETWORKS = ("model", "reward_model")
"""Sections of a config that describe networks; settings of other sections are named if these do not differ."""
NO_NETWORKS = ("collect", "eval", "other", "compile", "on_non_finite", MARK)
"""Sections and keys of a config that no network depends on."""

SHARED_STATE = {"Adam", "AdamW"}
"""Classes of optimizers that continue with each other's state."""
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


def follow_settings(updater: Any, trainer: Trainer) -> None:
    """Use the settings of optimizers that have changed since the checkpoint, with one line for each optimizer.

    Optimizers that the checkpoint does not contain, such as one written without a fit, keep their settings.

    Args:
        updater: The :class:`Updater` of the policy.
        trainer: The Trainer that resumes.
    """
    loaded = [None] * len(updater.optimizers) if updater.loaded_settings is None else updater.loaded_settings
    scheduled = {id(scheduler.optimizer) for scheduler in updater.schedulers}
    for index, (optimizer, made, saved) in enumerate(zip(updater.optimizers, updater.settings, loaded, strict=False)):
        is_by_config = updater.schedules.sets_learning_rate and index not in updater.unscheduled
        schedule: Any = "scheduler" if id(optimizer) in scheduled else "config" if is_by_config else "none"
        text = _changed_settings(optimizer, made, saved, schedule)
        if text is not None and trainer.is_global_zero:
            logger.warning("optimizer %d %s", index, text)


def _changed_settings(
    optimizer: Optimizer,
    made: Settings,
    saved: Settings | None,
    schedule: Literal["none", "config", "scheduler"] = "none",
) -> str | None:
    """Use the settings that the program has changed since a checkpoint in an optimizer that was restored from it.

    The other settings continue from the checkpoint, such as a learning rate that training has changed.

    Args:
        optimizer: Optimizer with the state and the settings of the checkpoint.
        made: Its settings before the checkpoint was loaded.
        saved: Its settings at the start of the run that wrote the checkpoint; None if an older version wrote it. Then
            the settings of the checkpoint are used, because the changes of the program are unknown.
        schedule: Source of the learning rate: nothing, ``learn.lr_scheduler``, or a scheduler that
            ``configure_optimizers`` returned, which continues from the rate in the checkpoint.

    Returns:
        A message about the settings that differ, without the index of the optimizer; None if none differs.
    """
    now, was = made[0]["type"], (saved or made)[0]["type"]
    if now != was and not {now, was} <= SHARED_STATE:
        optimizer.state.clear()
        for group, own in zip(optimizer.param_groups, made, strict=True):
            group.pop("initial_lr", None)
            group.update({name: value for name, value in own.items() if name not in ("type", "is_scheduled")})
        return f"begins with the settings of this run and no state, because it is of type {now}, not {was}"
    used, kept = [], []
    loaded = settings_of(optimizer)
    for place, (group, own, then) in enumerate(zip(optimizer.param_groups, made, saved or loaded, strict=True)):
        where = f" of group {place}" if len(made) > 1 else ""
        has_lost = schedule == "none" and "initial_lr" in group and not own["is_scheduled"]  # its schedule
        for name in own.keys() & group.keys() - {"is_scheduled"}:
            before = group["lr"] if name == "lr" and has_lost else then.get(name)
            if own[name] == before:
                continue
            if (saved is None and not has_lost) or (name == "lr" and schedule == "scheduler"):
                kept.append(f"{name}{where} {loaded[place][name]}, not {own[name]}")
                continue
            used.append(f"{name}{where} {own[name]}, not {before}")
            group[name] = own[name]
            if name == "lr":
                group.pop("initial_lr", None)  # a schedule of the config begins with the new rate
    if now != was:
        used.append(f"type {now}, not {was}")
    return _about(sorted(used), sorted(kept), saved is None)


def _about(used: Sequence[str], kept: Sequence[str], is_older: bool) -> str | None:
    reason = "an older version wrote it" if is_older else "a scheduler of configure_optimizers continues from it"
    parts = [f"uses the settings of this run: {'; '.join(used)} of the checkpoint"] if used else []
    parts += (
        [f"continues with those of the checkpoint, because {reason}: {'; '.join(kept)} of this run"] if kept else []
    )
    return ", and ".join(parts) or None
