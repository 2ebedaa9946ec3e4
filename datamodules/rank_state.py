"""Where collecting is on a rank: reading it as tensors and builtins, and putting a run there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from lightning_ding.envs import NotPlainError, env_state, load_env_state
from lightning_ding.worker import ISerialCollector

State = dict[str, Any]


def read_collecting(policy: Any, collector: ISerialCollector, env: VectorEnv, evaluation_env: VectorEnv) -> State:
    """Return everything that decides what is collected next, except for random number generators and weights.

    Args:
        policy: What it remembers of episodes, and metrics that are not written yet.
        collector: Its counters, episodes and transitions that wait.
        env: Of the collector; where its episodes are.
        evaluation_env: Of the evaluator.

    Returns:
        What ``restore_collecting`` takes; ``missing`` says what an env or the collector cannot give, if anything.
    """
    state: State = {"memory": policy.collect_memory(), "metrics": policy.metrics.state_dict(), "missing": None}
    state |= {"returns": policy.normaliser.episode_state()}
    state |= {"collector": None, "envs": None, "evaluation_envs": None}
    try:
        state["collector"] = collector.state_dict()
        state["envs"] = env_state(env)
        state["evaluation_envs"] = env_state(evaluation_env)
    except (NotPlainError, NotImplementedError) as error:
        state["missing"] = str(error)
    return state


def restore_collecting(
    state: Mapping[str, Any], policy: Any, collector: ISerialCollector, env: VectorEnv, evaluation_env: VectorEnv
) -> str | None:
    """Put a run where another one was; the envs have been reset.

    Returns:
        None; or why the episodes cannot go on. Then everything but them is restored, and ``collector.reset_env`` has to
        begin new ones.
    """
    missing: str | None = state["missing"] or _other_collector(state["collector"], collector)
    policy.metrics.load_state_dict(state["metrics"], policy.device)
    if missing is None:
        try:
            load_env_state(env, state["envs"])
            load_env_state(evaluation_env, state["evaluation_envs"])
        except NotPlainError as error:
            missing = str(error)
    if state["collector"] is not None:
        collector.load_state_dict(state["collector"], goes_on=missing is None)
    if missing is None:
        policy.load_collect_memory(state["memory"])
        policy.normaliser.load_episode_state(state["returns"])
    return missing


def _other_collector(saved: Mapping[str, Any] | None, collector: ISerialCollector) -> str | None:
    """Return in words that a collector of another kind was saved; None if not, or if its state does not say it."""
    name = type(collector).__name__
    was = name if saved is None else saved.get("class", name)
    return None if was == name else f"the collector was a {was}, now it is a {name}"
