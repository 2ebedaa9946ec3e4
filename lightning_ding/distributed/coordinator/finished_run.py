"""Finished runs: the record of what ended a run, and the check that a resumed one gets beyond it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.distributed.commander.base import get_parallel_commander_cls
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.older_files import import_older
from lightning_ding.distributed.coordinator.resume_config import database_of, holds_run, name_of, read_state
from lightning_ding.utils.protocols import Monitor

STOP_VALUE, WIN_RATE = "main.env.stop_value", "system.coordinator.commander.league.win_rate"
COUNTERS = {"main.max_env_step": "env_step", "main.max_train_iter": "train_iter"}
"""Counter that each limit is for."""
MAX_EPOCHS, MAX_TIME, CALLBACKS = (f"system.learner.trainer.{name}" for name in ("max_epochs", "max_time", "callbacks"))
ENDS = {"evaluation": (STOP_VALUE, WIN_RATE), "learner": (STOP_VALUE, MAX_EPOCHS, MAX_TIME, CALLBACKS)}
"""Limits, other than those of counters, at which an evaluation by a collector or the learner ends a run."""


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


def end_of(folder: Path) -> dict[str, Any] | None:
    """Return the record of the finished run in a folder; None if there is none that can be continued.

    Raises:
        ValueError: If the state of the run is damaged.
    """
    if not holds_run(folder):
        return None
    database = database_of(folder)
    try:
        import_older(database.file.parent, database)
        found: dict[str, Any] | None = read_state(database)["finished"]
        return found
    finally:
        database.close()


def check_continuation(config: ParallelConfig) -> None:
    """Check that a config continues the run in its folder if that is finished, before anything is written there.

    Raises:
        ValueError: If the run is finished, and a limit that ended it would end it again, or the learner's checkpoint is
            missing.
    """
    end = end_of(Path(config.main.exp_name))
    if end is not None:
        check_end(end, config)


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
