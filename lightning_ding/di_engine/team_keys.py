"""Where the keys of DI-engine's algorithms of teams that learn from rollouts go in our configs.

DI-engine's MAPPO is its policy ``ppo`` with ``multi_agent: True``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning_ding.di_engine.shared_keys import (
    NETWORK,
    Cfg,
    Key,
    Ours,
    eval_freq_key,
    only,
    replaced,
    same,
    squeezed,
    to,
)

OF_TEAMS = {"ppo": "mappo"}
"""Names here of the policies of DI-engine that are those of a team with ``multi_agent: True``."""


def _widths(actor: tuple[int, int], critic: tuple[int, int], encoder: tuple[int, ...] | None) -> dict[str, Key]:
    """Return the keys of the widths of a network.

    Args:
        actor: Default width and number of hidden layers of the actor's head.
        critic: Default width and number of hidden layers of the critic's head.
        encoder: Default widths of the layers before the heads; None if there is one, as wide as the head's.
    """

    def ours(_: Any, cfg: Cfg) -> Ours:
        found = {}
        for name, goal, (size, layers) in (("actor", "encoder", actor), ("critic", "critic", critic)):
            width = cfg.get(f"model.{name}_head_hidden_size", size)
            first = [width] if encoder is None else list(cfg.get("model.encoder_hidden_size_list", encoder))
            found[f"model.{goal}_hidden_size_list"] = [
                *first,
                *[width] * cfg.get(f"model.{name}_head_layer_num", layers),
            ]
        return found

    names = [f"{head}_head_{what}" for head in ("actor", "critic") for what in ("hidden_size", "layer_num")]
    names += [] if encoder is None else ["encoder_hidden_size_list"]
    return {f"model.{name}": Key(ours) for name in names}


def mappo_keys(ppo: dict[str, Key]) -> dict[str, Key]:
    """Return the table of ``mappo`` for that of ``ppo``."""
    return {
        **{path: key for path, key in ppo.items() if not path.startswith("model.")},
        "multi_agent": only(True, why="it makes ppo the algorithm of a team"),
        "action_space": to("model.action_space"),
        "model.action_space": to("model.action_space"),
        "model.action_shape": to("model.action_shape", convert=squeezed),
        "model.agent_obs_shape": to("model.agent_obs_shape", convert=squeezed),
        "model.global_obs_shape": replaced("the env says how large the global state is that all agents share"),
        **same("model.agent_num"),
        **{path: NETWORK[path] for path in ("model.activation", "model.norm_type")},
        "model.sigma_type": only("independent", why="agents have no other standard deviation here"),
        "model.bound_type": only(None, why="the mean of a team's actions has no bound here"),
        "model.encoder": only(None, why="pass a network as the argument model of the policy"),
        **_widths((256, 2), (512, 1), None),
        "eval.evaluator.eval_freq": eval_freq_key("mappo"),
    }


def happo_keys(ppo: dict[str, Key]) -> dict[str, Key]:
    """Return the table of ``happo`` for that of ``ppo``."""
    return {
        **mappo_keys(ppo),
        "multi_agent": replaced("happo is always of a team"),
        "agent_num": to("model.agent_num"),
        "recompute_adv": replaced("the critic learns after the actors, so that advantages stay as they are"),
        "model.use_lstm": only(False, why="recurrent_mappo has a memory"),
        "model.lstm_type": replaced("there is no memory"),
        "model.res_link": only(False, why="there is no memory"),
        **_widths((64, 2), (64, 1), (128, 128, 64)),
        "eval.evaluator.eval_freq": eval_freq_key("happo"),
    }


def _in_steps(name: str) -> Key:
    """Return a key of an amount of sequences, which is one of transitions here."""
    return Key(lambda value, cfg: {f"{name}": None if value is None else value * cfg.get("collect.unroll_len", 20)})


def _actor_and_critic(value: Any, _: Cfg) -> Ours:
    """Return the widths of the networks; DI-engine's critic has two layers, as wide as the actor's last one."""
    widths = list(value)
    return {"model.encoder_hidden_size_list": widths, "model.critic_hidden_size_list": [widths[-1]] * 2}


def _entropy_weight(value: Any, cfg: Cfg) -> Ours:
    """Return the weight next to a loss of the actors whose own weight is 1, since they have an optimizer here."""
    return {"learn.entropy_weight": value / cfg.get("learn.policy_weight", 0.001)}


_FOR_EPS = replaced("actions are drawn from the policy, which its entropy keeps exploring")
_FOR_REPLAY = replaced("a rollout is learned from when it has been collected")


def coma_keys(on_policy: dict[str, Key], buffer: Iterable[str]) -> dict[str, Key]:
    """Return the table of ``coma``, which learns from replay in DI-engine and from rollouts here.

    Args:
        on_policy: Keys of all policies that learn from rollouts.
        buffer: Names of the keys of a replay buffer.
    """
    return {
        **{path: key for path, key in on_policy.items() if not path.startswith("model.")},
        **dict.fromkeys(buffer, _FOR_REPLAY),
        **{f"other.eps.{name}": _FOR_EPS for name in ("type", "start", "end", "decay", "collect")},
        "multi_agent": replaced("it is a policy of teams"),
        "agent_num": to("model.agent_num"),
        "collect.n_sample": Key(
            _in_steps("collect.n_sample").ours,
            lambda cfg: cfg["collect.collector.type"] == "sample",
            "the collector takes collect.n_episode",
        ),
        "collect.unroll_len": replaced("a rollout is learned from in single steps, since agents have no memory"),
        "collect.env_num": replaced("the number of envs is that of the section env"),
        "eval.env_num": replaced("the number of envs is that of the section env"),
        "learn.batch_size": _in_steps("learn.batch_size"),
        "learn.update_per_collect": to("learn.epoch_per_collect"),
        "learn.discount_factor": to("discount_factor"),
        "learn.target_update_theta": to("learn.target_theta"),
        **same("learn.td_lambda", "learn.value_weight", "model.agent_num"),
        "learn.policy_weight": replaced("learn.entropy_weight is divided by it"),
        "learn.entropy_weight": Key(_entropy_weight),
        "model.obs_shape.agent_state": to("model.agent_obs_shape", convert=squeezed),
        "model.obs_shape.global_state": to("model.global_obs_shape", convert=squeezed),
        "model.action_shape": to("model.action_shape", convert=squeezed),
        "model.actor_hidden_size_list": Key(_actor_and_critic),
        "eval.evaluator.eval_freq": eval_freq_key("coma"),
    }


_LEARN = {"clip_ratio": 0.2, "value_norm": True}
ROLLOUT_DEFAULTS: dict[str, dict[str, Any]] = {
    "mappo": {"model": {"actor_head_hidden_size": 256}, "learn": _LEARN},
    "happo": {"model": {"actor_head_hidden_size": 64}, "learn": _LEARN},
    "coma": {
        "learn": {
            **{"update_per_collect": 20, "batch_size": 32, "learning_rate": 5e-4, "target_update_theta": 0.001},
            **{"policy_weight": 0.001, "value_weight": 1.0, "entropy_weight": 0.01},
        },
        "collect": {"unroll_len": 20},
    },
}
"""DI-engine's defaults that differ from ours, in its keys."""
ROLLOUT_WITHOUT_KEY: dict[str, dict[str, Any]] = {
    "mappo": {"learn.optimizer.eps": 1e-8, "model.agent_id": False},
    "happo": {"learn.optimizer.eps": 1e-8, "model.parameter_sharing": False},
    "coma": {
        **{"learn.optimizer.eps": 1e-8, "learn.value_norm": False, "learn.adv_norm": False, "model.agent_id": False},
        **{"learn.ppo_param_init": False, "learn.grad_clip_norm": None},
    },
}
"""What DI-engine has no key for: its agents do not see their number, those of HAPPO have separate critics,
and COMA has no scales of returns and advantages."""
