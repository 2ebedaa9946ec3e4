"""Facts of a run from its config and its datamodule, before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

WITHOUT_RATE = ("sgd",)  # optimizers whose step is not about as large as the learning rate


@dataclass(frozen=True)
class Facts:
    """Facts of a run before it starts; None where a fact is not known."""

    discount_factor: float | None = None
    learning_rate: float | None = None
    """The largest step size of any optimizer whose steps are about as large as it, such as Adam."""
    budget: int | None = None
    """Env steps or updates of the whole run."""
    axis: str = "env_step"
    """The unit of the budget."""
    num_envs: int | None = None
    time_limit: int | None = None
    """Env steps after which the env cuts an episode."""
    normalises_rewards: bool = False
    """Whether rewards are divided by the standard deviation of the return."""
    scales_values: bool = False
    """Whether the critic is scaled by the returns and advantages are standardised, so that large rewards do no harm."""
    changes_rewards: bool = False
    """Whether a wrapper changes the rewards of training, or a reward model replaces them."""
    entropy_is_chosen: bool = False
    """Whether the algorithm steers the entropy to a chosen value."""
    entropy_weight: float = 0.0
    """Weight of the entropy against standardised advantages; 0 with other advantages, whose size is not known."""
    bonus: float = 0.0
    """Largest part of a step's value that is no reward, such as that of the entropy of soft Q-learning."""

    @property
    def horizon(self) -> float | None:
        """Env steps over which the discount sums rewards, ``1 / (1 - discount_factor)``; None without a discount."""
        gamma = self.discount_factor
        return None if gamma is None or gamma >= 1 else 1 / (1 - gamma)


def facts_of(cfg: Mapping[str, Any], data: Mapping[str, Any]) -> Facts:
    """Return the facts of a run.

    Args:
        cfg: Config of the policy, as ``policy.cfg`` and checkpoints have it.
        data: Arguments of the datamodule.
    """
    learn, reward_model = _section(cfg, "learn"), _section(cfg, "reward_model").get("type")
    rates: list[float] = []
    for name, value in learn.items():
        if str(name).startswith("learning_rate") and _section(learn, "optimizer").get("type") not in WITHOUT_RATE:
            rates.append(_number(value) or 0.0)
    on_updates, updates = data.get("max_env_step") is None, data.get("max_train_iter")
    time_limit, wraps_rewards = _of_envs(data)
    return Facts(
        discount_factor=_number(cfg.get("discount_factor")),
        learning_rate=max(rates, default=0.0) or None,
        budget=updates if on_updates else data.get("max_env_step"),
        axis="train_iter" if on_updates and updates is not None else "env_step",
        num_envs=data.get("num_envs") or None,
        time_limit=time_limit,
        normalises_rewards=bool(data.get("norm_reward")),
        scales_values=learn.get("value_norm") in (True, "popart") and bool(learn.get("adv_norm")),
        changes_rewards=reward_model is not None or wraps_rewards,
        entropy_is_chosen=bool(learn.get("auto_alpha")),
        entropy_weight=(_number(learn.get("entropy_weight")) or 0.0) if learn.get("adv_norm") else 0.0,
        bonus=_bonus(cfg, learn),
    )


def _section(cfg: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a config; empty if it has none, as a dict config may."""
    found = cfg.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    """Return a number of a config; None for anything else, such as what only a policy of a user knows."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _bonus(cfg: Mapping[str, Any], learn: Mapping[str, Any]) -> float:
    """Return the largest part of a step's value that is no reward of the env."""
    scale, limit = _number(cfg.get("m_alpha")), _number(cfg.get("m_clip", -1.0))
    if scale is not None and limit is not None:  # of Munchausen DQN
        return abs(scale * limit)
    if str(cfg.get("cfg_type", "")).startswith(("SQL", "SQIL")):  # soft Q-learning
        actions = _section(cfg, "model").get("action_shape")
        return (_number(learn.get("alpha")) or 1.0) * math.log(max(actions, 1) if isinstance(actions, int) else 100)
    return 0.0


def _of_envs(data: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Return the shortest time limit of the training envs, and whether a wrapper changes their rewards."""
    env_id, limits, wraps_rewards = data.get("env_id"), list[int](), False
    spec = gym.registry.get(env_id.rpartition(":")[2]) if isinstance(env_id, str) else None
    if spec is not None and spec.max_episode_steps is not None:
        limits.append(spec.max_episode_steps)
    for given in (data.get("wrappers"), data.get("train_wrappers")):
        for one in given if isinstance(given, (list, tuple)) else [given] if given else ():
            named = one if isinstance(one, Mapping) and len(one) == 1 else {str(one): None}
            for name, arguments in named.items():
                wraps_rewards = wraps_rewards or "reward" in str(name).lower()
                if name == "time_limit" and isinstance(arguments, Mapping):
                    limits += [value for value in arguments.values() if isinstance(value, int)]
    return min(limits, default=None), wraps_rewards
