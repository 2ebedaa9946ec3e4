"""DI-engine's configs with ``multi_agent: True``: the policy of a team that they describe.

DI-engine's critics of teams get what the agent sees, the global state and the agent's own action, and so do those here
(``model.critic_input: state``). Agents share their networks there and here. The env determines the size of its state.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.config import deep_merge
from lightning_ding.di_engine.configs import Config
from lightning_ding.di_engine.shared_keys import squeezed
from lightning_ding.model.qac import hidden_sizes
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY

TEAMS = {"ddpg": "maddpg", "td3": "maddpg", "sac": "masac", "discrete_sac": "masac"}
"""Name of the policy of a team for each of DI-engine's policies that learn from replay with an actor."""
_SHAPES = ("agent_num", "agent_obs_shape")
_OF_ENV = ("model.global_obs_shape",)
_DEFAULTS: dict[str, Config] = {
    "td3": {"model": {"twin_critic": True}, "learn": {"noise": True, "actor_update_freq": 2}},
    "sac": {"model": {"last_layer_init": 3e-3}},
}
"""Defaults of the policies of one agent, in our keys, that are others than those of a team."""
_KEPT = ("action_shape", "activation", "twin_critic", "last_layer_init")


def pop_team(keys: Config, family: str) -> Config | None:
    """Remove the keys that only a team has, and return the shapes that they give; None if there is one agent.

    Args:
        keys: DI-engine's dotted keys of a policy.
        family: DI-engine's policy.
    """
    if family not in TEAMS or not keys.get("multi_agent"):
        return None
    for name in ("multi_agent", *_OF_ENV):
        keys.pop(name, None)
    return {name: squeezed(keys.pop(f"model.{name}")) for name in _SHAPES if f"model.{name}" in keys}


def as_team(config: Config, family: str, shapes: Config) -> tuple[str, type[Policy[Any]], Config]:
    """Return the name, the class and the config of the policy of a team.

    Args:
        config: The config of the policy of one agent, in our keys.
        family: DI-engine's policy.
        shapes: What :func:`pop_team` returned.
    """
    config = deep_merge(_DEFAULTS.get(family, {}), config)
    name, theirs = TEAMS[family], config["model"]
    widths = {
        part: hidden_sizes(part, theirs[f"{part}_head_hidden_size"], theirs.get(f"{part}_head_layer_num", 1), None)
        for part in ("actor", "critic")
    }
    layers = {"encoder_hidden_size_list": widths["actor"], "critic_hidden_size_list": widths["critic"]}
    kept = {key: theirs[key] for key in _KEPT if key in theirs}
    model = {**kept, **shapes, **layers, "agent_id": False, "critic_input": "state"}
    policy_class: type[Policy[Any]] = POLICY_REGISTRY.get(name)
    return name, policy_class, {**config, "model": model}
