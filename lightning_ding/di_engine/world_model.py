"""The section ``world_model`` of DI-engine's configs: SAC with the world model ``mbpo`` is the policy ``mbpo`` here.

DI-engine's model reads the end of an episode from the env's ``termination_fn``; here it is the function of the same env
in ``lightning_ding.rl.dynamics``. Its weight decay grows from layer to layer, from 2.5e-5 to 1e-4; here it is 5e-5.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.configs import Config, flat, nested
from lightning_ding.di_engine.shared_keys import Notes
from lightning_ding.policy import MBPOPolicy

_DEFAULTS: Config = {
    "train_freq": 250,
    "rollout_length_scheduler": {
        **{"type": "linear", "rollout_start_step": 20_000, "rollout_end_step": 150_000},
        **{"rollout_length_min": 1, "rollout_length_max": 25},
    },
    "model": {
        **{"ensemble_size": 7, "elite_size": 5, "hidden_size": 200, "use_decay": False, "batch_size": 256},
        **{"holdout_ratio": 0.2, "max_epochs_since_update": 5, "deterministic_rollout": True},
    },
    "other": {"real_ratio": 0.05, "rollout_retain": 4, "rollout_batch_size": 100_000},
}
"""Values of DI-engine's keys that have counterparts here, where a config leaves them out."""
_SAME = {
    "train_freq": "dynamics.fit_freq",
    "model.ensemble_size": "dynamics.ensemble_num",
    "model.elite_size": "dynamics.elite_num",
    "model.batch_size": "dynamics.batch_size",
    "model.holdout_ratio": "dynamics.holdout_ratio",
    "model.max_epochs_since_update": "dynamics.max_epochs_since_update",
    "model.deterministic_rollout": "rollout.deterministic",
    "other.rollout_batch_size": "rollout.batch_size",
    "other.rollout_retain": "rollout.retain",
    "other.real_ratio": "learn.real_ratio",
}
_OTHER = ("model.hidden_size", "model.use_decay")
_OF_ENV = ("model.state_size", "model.action_size", "model.reward_size", "cuda", "type", "import_names")
_UNREAD = {"eval_freq": "errors are measured at every training of the model", "other.imagination_buffer.": "it grows"}
_ENDS = {"Pendulum": "never", "HalfCheetah": "never", "Hopper": "hopper", "Walker2d": "walker2d"}


def pop_world_model(main: Config, create: Config, family: str, env_id: str, notes: Notes) -> Config | None:
    """Return what the sections of a world model add to the config of SAC, in our keys; None without them.

    Args:
        main: The ``main_config``.
        create: The ``create_config``.
        family: DI-engine's policy.
        env_id: Id of the env here.
        notes: Takes translations, and warnings about keys without effect.

    Raises:
        ValueError: If the model, its policy or a key has no counterpart.
    """
    given, created = main.get("world_model"), create.get("world_model", {})
    if given is None and not created:
        require(
            "imagination_buffer" not in create, "create_config.imagination_buffer", "left out without a model", "it"
        )
        return None
    kind = created.get("type", (given or {}).get("type"))
    require(kind == "mbpo", "create_config.world_model.type", "'mbpo', the only world model here", kind)
    require(family == "sac", "create_config.policy.type", "'sac' with a world model", family)
    keys = dict(flat(deep_merge(_DEFAULTS, {**created, **(given or {})})))
    schedule = {name: keys.pop(name) for name in list(keys) if name.startswith("rollout_length_scheduler.")}
    for name in (one for one in keys if one.startswith((*_UNREAD,))):
        reason = next(why for start, why in _UNREAD.items() if name.startswith(start))
        notes.warnings.append(f"world_model.{name} = {keys[name]!r} has no effect: {reason}")
    unknown = [name for name in keys if name not in (*_SAME, *_OTHER, *_OF_ENV) and not name.startswith((*_UNREAD,))]
    require(not unknown, "world_model", f"one with the keys {', '.join((*_SAME, *_OTHER))}", unknown)
    ours = {_SAME[name]: value for name, value in keys.items() if name in _SAME}
    ours["dynamics.hidden_size_list"] = [keys["model.hidden_size"]] * 4
    ours["dynamics.weight_decay"] = 5e-5 if keys["model.use_decay"] else 0.0
    ours["rollout.length"] = rollout_length({name.rpartition(".")[2]: one for name, one in schedule.items()})
    end = _ENDS.get(env_id.partition("-v")[0])  # not HopperBulletEnv, which has other observations
    ours["dynamics.terminated_fn"] = None if end is None else f"lightning_ding.rl.dynamics.{end}_terminated"
    ours["other.replay_buffer.type"] = "imagination"
    notes.translated.append("world_model -> the policy mbpo")
    return nested(ours)


def rollout_length(schedule: Config) -> list[list[float]]:
    """Return ``rollout.length`` for DI-engine's ``rollout_length_scheduler``.

    Raises:
        ValueError: If the type of the schedule is unknown.
    """
    kind = schedule["type"]
    require(kind in ("linear", "constant"), "world_model.rollout_length_scheduler.type", "'linear' or 'constant'", kind)
    if kind == "constant":
        return [[0, schedule["rollout_length"]]]
    shortest, longest = schedule["rollout_length_min"], schedule["rollout_length_max"]
    if shortest == longest:
        return [[0, shortest]]
    return [[schedule["rollout_start_step"], shortest], [schedule["rollout_end_step"], longest]]


def as_mbpo(config: Config, added: Config) -> tuple[str, Any, Config]:
    """Return the name, the class and the config of the policy, for that of SAC and what its world model adds."""
    return "mbpo", MBPOPolicy, deep_merge(config, added)
