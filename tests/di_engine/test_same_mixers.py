"""Mixers, and losses of MADQN, have DI-engine's values on random numbers; ``make_ding_mixers`` computed those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model.teams.mixers import JointValues, MonotonicMixer, UnrestrictedMixer
from lightning_ding.policy import MADQNPolicy

NAMES = {
    "hyper_w_1": "first_weight",
    "hyper_w_final": "last_weight",
    "hyper_b_1": "first_bias",
    "V": "state_value",
    "net": "layers",
    "action_encoding": "encoder",
    "Q": "action_value",
}
"""Our names of DI-engine's layers."""


def case(name: str, network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what a case was given and what DI-engine made of it; the network gets DI-engine's weights."""
    sides: dict[str, dict[str, Tensor]] = {"in": {}, "out": {}, "weight": {}}
    for key, value in load_file(Path(__file__).with_name("ding_mixers.safetensors")).items():
        one, side, last = key.split("/")
        if one == name:
            sides[side][last] = value
    state: dict[str, Any] = {}
    for key, value in sides["weight"].items():
        part, *place, kind = key.split(".")  # layers of a Sequential are 0, 2, 4, with activations between them
        layer = f".layers.{int(place[0]) // 2}" if place else ""
        state[f"{NAMES[part]}{layer}.{kind}"] = value
    network.double().load_state_dict(state)
    return sides["in"], sides["out"]


def test_monotonic_mixer_is_that_of_ding() -> None:
    mixer = MonotonicMixer(3, 4, mixing_embed_dim=5, hypernet_embed=7)
    given, expected = case("qmix", mixer)
    assert_close(mixer(given["value"], given["state"]), expected["total"])


def test_central_mixer_is_that_of_ding() -> None:
    mixer = UnrestrictedMixer(3, 4, central_embed_dim=5)
    given, expected = case("wqmix", mixer)
    assert_close(mixer(given["value"], given["state"]), expected["total"])


def test_joint_values_are_those_of_ding() -> None:
    joint = JointValues(feature_size=8, action_size=6, state_size=4, embedding_size=5)
    given, expected = case("qtran", joint)
    alive = torch.ones(given["action"].shape, dtype=torch.float64)
    assert_close(joint(given["feature"], given["action"], alive, given["state"]), expected["total"])
    assert_close(joint.of_state(given["state"]), expected["of_state"])


class Said(nn.Module):
    """A network that returns given values, leading axis T + 1, for observations that are the numbers of their steps."""

    def __init__(self, **values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, obs: dict[str, Tensor], _: Any) -> dict[str, Tensor]:
        steps = obs["agent_state"][:, 0, 0, 0].long()
        return {name: values[steps] for name, values in self.values.items()}

    def mix(self, value: Tensor, _: Any) -> Tensor:
        return value.sum(-1)


def test_losses_of_madqn_are_those_of_ding() -> None:
    given, expected = case("madqn", nn.Identity())
    sizes = {"agent_num": 3, "agent_obs_shape": 3, "global_obs_shape": 4, "action_shape": 6}
    learn: dict[str, Any] = {"double_q": False}
    config = {"model": sizes, "learn": learn, "nstep": 1, "discount_factor": 0.9, "learn_unroll_len": 2}
    policy: Any = MADQNPolicy(config)
    end = torch.zeros(1, 5, 3, 6, dtype=torch.float64)
    policy.model = Said(**{name: torch.cat([given[name], end]) for name in ("logit", "cooperation")})
    following = torch.cat([end, given["following"]])
    policy.target_model = Said(logit=following, cooperation=following)
    now, after = ({"agent_state": torch.zeros(2, 5, 3, 3) + torch.arange(k, k + 2.0).view(2, 1, 1, 1)} for k in (0, 1))
    batch = {"obs": now, "next_obs": after, "action": given["action"], "reward": given["reward"]}
    batch |= {"terminated": given["done"].bool(), "mask": torch.ones(2, 5, dtype=torch.bool), "recurrent_state": end}
    loss, report = policy.loss(batch)
    assert_close(loss, expected["loss"])
    assert_close(report["cooperation_loss"], expected["cooperation_loss"])
