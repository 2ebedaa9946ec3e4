"""Checks of a resumed run: its config still learns the same, and a finished run has a limit that lets it continue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.config import MARK, deep_merge, to_dict, without_defaults
from lightning_ding.distributed.commander.base import get_parallel_commander_cls
from lightning_ding.distributed.config import ParallelConfig, resolve_policy
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.policy import get_policy_cls
from lightning_ding.policy.base.older_configs import renewed
from lightning_ding.registry import BUFFER_REGISTRY, import_modules
from lightning_ding.utils.protocols import Monitor
from lightning_ding.worker.config import ReplayBufferConfig

STOP_VALUE, WIN_RATE = "main.env.stop_value", "system.coordinator.commander.league.win_rate"
COUNTERS = {"main.max_env_step": "env_step", "main.max_train_iter": "train_iter"}
"""Counter that each limit is for."""
MAX_EPOCHS, MAX_TIME, CALLBACKS = (f"system.learner.trainer.{name}" for name in ("max_epochs", "max_time", "callbacks"))
ENDS = {"evaluation": (STOP_VALUE, WIN_RATE), "learner": (STOP_VALUE, MAX_EPOCHS, MAX_TIME, CALLBACKS)}
"""Limits, other than those of counters, at which an evaluation by a collector or the learner ends a run."""


def fixed_part(config: ParallelConfig) -> dict[str, Any]:
    """Return the settings that cannot change during a run, with defaults: policy, env, and kinds of roles."""
    policy, system = config.main.policy, config.system
    whole = to_dict(resolve_policy(policy))
    wrappers = {name: getattr(config.main.env, name) for name in ("wrappers", "train_wrappers")}
    env = {"env_id": config.main.env.env_id, **{name: given for name, given in wrappers.items() if given}}
    main = {"policy": {"type": policy["type"], **whole}, "env": env}
    kinds = {"coordinator": {"commander": {"type": system.coordinator.commander.type}}}
    system_part = {**kinds, "collector": {"type": system.collector.type}}
    part: dict[str, Any] = json.loads(json.dumps({"main": main, "system": system_part}))
    import_modules(_buffer(part).get("import_names", ()))
    return _with_keys_of_buffer(part)


def check_fixed_part(saved: Mapping[str, Any], config: ParallelConfig) -> None:
    """Check that a run can be resumed with a config.

    Args:
        saved: ``fixed_part`` of the config with which the run was started.
        config: Config with which it is resumed.

    Raises:
        ValueError: If the config would change what is learned; the message names the key.
    """
    now = fixed_part(config)  # first, because it imports the modules that register buffers
    path, was, got = next(_differences("", _renewed(_with_keys_of_buffer(saved)), now), ("", None, None))
    if path:
        raise ValueError(f"{path} must be {was!r}, as in the run that is resumed, got {got!r}")


def renew_learning(tasks: Iterable[Task], config: ParallelConfig) -> None:
    """Update the contents of learning tasks to a config, which may have changed since they were made."""
    for task in tasks:
        if task.role == "learner":
            about = {"learner_cfg": to_dict(config.system.learner), "main": to_dict(config.main)}
            task.info = {**task.info, **about, "policy": dict(config.main.policy)}


def _buffer(part: Mapping[str, Any]) -> Mapping[str, Any]:
    section: Mapping[str, Any] = part["main"]["policy"].get("other", {}).get("replay_buffer", {})
    return section


def _with_keys_of_buffer(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fixed part with all keys of its buffer, with defaults, and without those of other buffers."""
    section = _buffer(part)
    if not section:
        return dict(part)
    buffer = BUFFER_REGISTRY.get(section["type"]) if section["type"] in BUFFER_REGISTRY else None
    defaults = to_dict(getattr(buffer, "config_class", ReplayBufferConfig)())
    own = without_defaults(deep_merge(defaults, section), defaults, ReplayBufferConfig.variants())
    part = deep_merge(part, {})  # a copy
    part["main"]["policy"]["other"]["replay_buffer"] = own
    return part


def _renewed(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved fixed part with the keys of its policy in their present meaning, and defaults for new ones."""
    config_class, given = get_policy_cls(part["main"]["policy"]).config_class, dict(part["main"]["policy"])
    named = {"type": given.pop("type"), MARK: config_class.__name__}
    defaults = json.loads(json.dumps(to_dict(config_class())))
    return {**part, "main": {**part["main"], "policy": named | deep_merge(defaults, renewed(config_class, given))}}


def _differences(path: str, was: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(got, Mapping):
        for name in [*was, *(new for new in got if new not in was)]:
            yield from _differences(f"{path}.{name}" if path else name, was.get(name), got.get(name))
    elif was != got:
        yield path, was, got


def record_of_end(config: ParallelConfig, ended_by: str | None, env_step: int, train_iter: int) -> dict[str, Any]:
    """Return the record of a finished run as builtins.

    Args:
        config: Config of the run.
        ended_by: Cause of the end: ``"max_env_step"``, ``"evaluation"``, ``"learner"`` or ``"shutdown"``.
        env_step: Env steps of all collectors.
        train_iter: Updates.
    """
    return {"ended_by": ended_by, "env_step": env_step, "train_iter": train_iter, "limits": limits_of(config)}


def limits_of(config: ParallelConfig) -> dict[str, Any]:
    """Return the limits of a run by their keys, as builtins, and its monitor; None for no limit."""
    main, commander, trainer = config.main, config.system.coordinator.commander, config.system.learner.trainer
    has_league = getattr(get_parallel_commander_cls(commander), "has_league", False)
    limits: dict[str, Any] = {
        "main.max_env_step": main.max_env_step,
        "main.max_train_iter": main.max_train_iter,
        STOP_VALUE: main.env.stop_value,
        WIN_RATE: commander.league.win_rate if has_league else None,
        MAX_EPOCHS: None if trainer.get("max_epochs") == -1 else trainer.get("max_epochs"),
        MAX_TIME: trainer.get("max_time"),
        CALLBACKS: trainer.get("callbacks") or None,
        "main.monitor": main.monitor,
    }
    return dict(json.loads(json.dumps(limits)))


def check_end(end: Mapping[str, Any], config: ParallelConfig) -> None:
    """Check that no limit that ended a run ends it again, and that the learner has a checkpoint.

    Args:
        end: Record of the finished run.
        config: Config that is to continue it.

    Raises:
        ValueError: If not; the message names the limit.
    """
    folder = Path(config.main.exp_name)
    advice = " or ".join(_advice(end, config))
    if advice:
        done = f"{end['env_step']} env steps and {end['train_iter']} updates"
        raise ValueError(
            f"{name_of(folder)} contains a finished run of {done}: {advice} to continue it, or choose another folder"
        )
    has_learned_here = end["train_iter"] > 0 and config.system.comm_learner is None
    if has_learned_here and last_checkpoint(folder / "learner") is None:
        raise ValueError(
            f"{name_of(folder)} contains a finished run without a whole checkpoint of its learner in "
            f"{folder / 'learner'}, from which it would continue: restore it, or choose another folder"
        )


def _advice(end: Mapping[str, Any], config: ParallelConfig) -> Iterator[str]:
    """Yield what to do about each limit that would end a finished run again."""
    was, now = end["limits"], limits_of(config)
    reached = [key for key, counter in COUNTERS.items() if _is_reached(now[key], end[counter])]
    if reached or any(_is_reached(was[key], end[counter]) for key, counter in COUNTERS.items()):
        yield from (f"raise {key}, which is {now[key]}," for key in reached)
        return
    ends = [key for key in ENDS.get(str(end["ended_by"]), ()) if was[key] is not None]
    if any(_is_relaxed(key, was, now) for key in ends):
        return
    is_minimised = Monitor.of(config.main.monitor).mode == "min"
    for key in ends:
        verb = "change" if key in (MAX_TIME, CALLBACKS) else "lower" if key == STOP_VALUE and is_minimised else "raise"
        yield f"{verb} {key}, which is {now[key]},"


def _is_reached(limit: int | None, counter: int) -> bool:
    return limit is not None and counter >= limit


def _is_relaxed(key: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a limit that a run has reached may not be reached any more."""
    if now[key] is None:
        return True
    if key == STOP_VALUE:
        is_same = was["main.monitor"] == now["main.monitor"]
        return not (is_same and Monitor.of(now["main.monitor"]).reaches(was[key], now[key]))
    return bool(now[key] > was[key] if key in (WIN_RATE, MAX_EPOCHS) else now[key] != was[key])


def name_of(folder: Path) -> str:
    """Return the name of a run's folder in messages."""
    return f"main.exp_name={str(folder)!r}"
