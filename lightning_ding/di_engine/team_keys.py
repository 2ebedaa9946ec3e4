"""Where the keys of DI-engine's algorithms of teams that learn from rollouts go in our configs.

DI-engine's MAPPO is its policy ``ppo`` with ``multi_agent: True``.
"""

from __future__ import annotations

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
        critic: Those of the critic's head.
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
        **{f"model.{name}_obs_shape": to(f"model.{name}_obs_shape", convert=squeezed) for name in ("agent", "global")},
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


_LEARN = {"clip_ratio": 0.2, "value_norm": True}
ROLLOUT_DEFAULTS: dict[str, dict[str, Any]] = {
    "mappo": {"model": {"actor_head_hidden_size": 256}, "learn": _LEARN},
    "happo": {"model": {"actor_head_hidden_size": 64}, "learn": _LEARN},
}
"""DI-engine's defaults that differ from ours, in its keys."""
ROLLOUT_WITHOUT_KEY: dict[str, dict[str, Any]] = {
    "mappo": {"learn.optimizer.eps": 1e-8, "model.agent_id": False},
    "happo": {"learn.optimizer.eps": 1e-8, "model.parameter_sharing": False},
}
"""What DI-engine has no key for: its agents do not see their number, and those of HAPPO have separate critics."""
