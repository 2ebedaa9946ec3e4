"""Lists of the widths of the layers of actor and critic, which need not share any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lightning_ding.config import to_dict
from lightning_ding.model import ConvEncoder, MLPEncoder
from lightning_ding.model.encoder import FlatVector
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.residual import EnsembleLinear
from lightning_ding.policy import create_policy
from lightning_ding.policy.on_policy import ActorCriticPolicy, OnPolicyPolicy
from lightning_ding.policy.qac import QACPolicy
from tests.algorithms.table import ALGORITHMS, names_of

VECTOR = spaces.Box(-1, 1, (5,))
IMAGE = spaces.Box(0, 255, (12, 12, 1), np.uint8)
LISTS = {"actor_hidden_size_list": [3, 4], "critic_hidden_size_list": [6]}
WITH_CRITIC = (*names_of(ActorCriticPolicy), "impala")
REPLAY = sorted({*names_of(QACPolicy)} - {"bro", "td7"})  # residual layers of one width; features with embeddings


def make(name: str, observations: Any = VECTOR, **model: Any) -> Any:
    torch.manual_seed(0)
    is_continuous = ALGORITHMS[name].env_id == "Pendulum-v1"
    actions = spaces.Box(-1, 1, (2,)) if is_continuous else spaces.Discrete(2)
    return create_policy({"type": name, "model": model}).build(observations, actions)


def widths(module: nn.Module) -> list[tuple[int, int]]:
    """Return the sizes of input and output of the layers of a head."""
    for part in module.modules():
        if isinstance(part, EnsembleMLP):
            return [(weight.shape[1], weight.shape[2]) for weight in part.weights]
    ensemble = [one.weight.shape[1:] for one in module.modules() if isinstance(one, EnsembleLinear)]
    if ensemble:
        return [(size[0], size[1]) for size in ensemble]
    return [(one.in_features, one.out_features) for one in module.modules() if isinstance(one, nn.Linear)]


@pytest.mark.parametrize("name", WITH_CRITIC)
def test_actor_and_critic_of_rollouts_have_their_own_layers_and_no_shared_ones(name: str) -> None:
    model = make(name, **LISTS).model
    is_recurrent = name == "recurrent_ppo"
    first = 64 if is_recurrent else 5  # the width of the core
    assert widths(model.actor) == [(first, 3), (3, 4), (4, 2)]
    assert widths(model.critic) == [(first, 6), (6, 1)]
    encoder = model.encoder.encoder if is_recurrent else model.encoder
    assert isinstance(encoder, FlatVector)


def test_an_option_of_the_encoder_makes_shared_layers_before_the_separate_ones() -> None:
    model = make("ppo", **LISTS, encoder_hidden_size_list=[7]).model
    assert isinstance(model.encoder, MLPEncoder)
    assert (model.critic_encoder, widths(model.encoder)) == (None, [(5, 7)])
    assert (widths(model.actor)[0], widths(model.critic)[0]) == ((7, 3), (7, 6))


def test_images_keep_their_encoder() -> None:
    model = make("ppo", IMAGE, **LISTS).model
    assert isinstance(model.encoder, ConvEncoder)
    assert (widths(model.actor)[0], widths(model.critic)[0]) == ((512, 3), (512, 6))


def test_an_empty_list_is_a_linear_function() -> None:
    model = make("a2c", actor_hidden_size_list=[], critic_hidden_size_list=[]).model
    assert (widths(model.actor), widths(model.critic)) == ([(5, 2)], [(5, 1)])


def test_reinforce_has_an_actor_alone() -> None:
    model = make("pg", actor_hidden_size_list=[3, 4]).model
    assert widths(model) == [(5, 3), (3, 4), (4, 2)]


@pytest.mark.parametrize("name", REPLAY)
def test_actor_and_critics_of_replay_have_the_widths_of_the_lists(name: str) -> None:
    policy = make(name, **LISTS)
    actor, critics = widths(policy.model.actor), widths(policy.model.critic)
    actions = 0 if name == "discrete_sac" else 2
    assert [size for _, size in actor[:-1]] == [3, 4]
    assert actor[0][0] == (5 + actions if name == "bcq" else 5)  # the actor of BCQ shifts actions
    assert [size for size, _ in critics] == [5 + actions, 6]
    same = create_policy({"type": name, **to_dict(policy.config)})  # as from a checkpoint
    same.model.load_state_dict(policy.model.state_dict())


def test_one_list_leaves_the_other_head_as_it_is() -> None:
    model = make("sac", actor_hidden_size_list=[3]).model
    assert widths(model.actor) == [(5, 3), (3, 4)]
    assert widths(model.critic) == [(7, 256), (256, 256), (256, 1)]


@pytest.mark.parametrize("name", REPLAY)
def test_layers_of_a_replay_policy_that_are_described_twice_are_refused(name: str) -> None:
    for part in ("actor", "critic"):
        for option, value in (("hidden_size", 17), ("layer_num", 5)):
            given = {f"{part}_hidden_size_list": [3], f"{part}_head_{option}": value}
            match = f"model.{part}_head_{option} must be left at its default with model.{part}_hidden_size_list"
            with pytest.raises(ValueError, match=match):
                create_policy({"type": name, "model": given})


@pytest.mark.parametrize("name", WITH_CRITIC)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"actor_hidden_size_list": [3]}, "critic_hidden_size_list must be set with actor_hidden_size_list"),
        ({"critic_hidden_size_list": [3]}, "actor_hidden_size_list must be set with critic_hidden_size_list"),
        (LISTS | {"actor_hidden_size_list": [0]}, r"actor_hidden_size_list must be None, or widths >= 1, got \[0\]"),
        (LISTS | {"critic_hidden_size_list": [0]}, r"critic_hidden_size_list must be None, or widths >= 1, got \[0\]"),
        (LISTS | {"actor_head_layer_num": 1}, "actor_head_layer_num must be left at its default with actor_hidden"),
        (LISTS | {"critic_head_hidden_size": 8}, "critic_head_hidden_size must be left at its default with critic_hid"),
    ],
)
def test_layers_of_rollout_policies_that_do_not_fit_are_refused(name: str, model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **model)


def test_every_family_with_an_actor_is_here() -> None:
    assert set(names_of(OnPolicyPolicy)) == {*WITH_CRITIC, "pg", "pqn", "acer"}


def test_first_deviation_of_independent_noise() -> None:
    for name in (*WITH_CRITIC, "pg", "bc"):
        policy: Any = create_policy({"type": name, "model": {"log_std_init": -1.5}}).build(
            VECTOR, spaces.Box(-1, 1, (2,))
        )
        assert policy.model.actor.log_sigma.tolist() == [-1.5, -1.5]
