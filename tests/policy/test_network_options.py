"""Every policy takes small images without options, and has all options of its encoder in its config."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.config import to_dict
from lightning_ding.model import ConvEncoder, DictEncoder, ImpalaEncoder, SeparateEncoder
from lightning_ding.policy import Policy, QLearningPolicy, create_policy
from lightning_ding.policy.qac import QACPolicy
from tests.algorithms.table import ALGORITHMS, WITHOUT_COLLECTING, names_of, with_actor

TORQUE = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
WITH_ENCODERS = [
    name for name in ALGORITHMS if name not in ("dreamerv3", "mbpo", "tdmpc2")
]  # sizes of a paper, and vectors only
WITH_LAYER_NORM = [name for name in WITH_ENCODERS if name not in ("xqc", "bro")]  # whose layers are always normalised


def make(name: str, observation_space: gym.Space[Any], **model: Any) -> Policy[Any]:
    if name == "rlpd" and model.get("layer_norm"):
        model["critic_layer_norm"] = False  # of the critics alone
    policy: Policy[Any] = create_policy({"type": name, "model": model})
    is_continuous = ALGORITHMS[name].env_id == "Pendulum-v1"
    return policy.build(observation_space, TORQUE if is_continuous else gym.spaces.Discrete(3))


def pixels(*shape: int, dtype: Any = np.uint8) -> gym.spaces.Box:
    return gym.spaces.Box(0, 1 if dtype == np.bool_ else 255, shape, dtype)


def encoders(policy: Policy[Any], kind: Any) -> list[Any]:
    return [module for module in policy.model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("name", WITH_ENCODERS)
@pytest.mark.parametrize(
    "space",
    [pixels(12, 12, 1), pixels(10, 10, 4, dtype=np.bool_), pixels(7, 7, 3)],
    ids=["12x12", "MinAtar", "MiniGrid"],
)
def test_a_policy_acts_on_small_images_without_options(name: str, space: gym.spaces.Box) -> None:
    policy = make(name, space)
    assert len(encoders(policy, ConvEncoder)) >= 1
    for mode in (policy.collect_mode, policy.eval_mode):
        action = mode.forward({env_id: torch.from_numpy(space.sample()) for env_id in (0, 1)})[0]["action"]
        assert torch.isfinite(action).all()


@pytest.mark.parametrize("name", WITH_LAYER_NORM)
def test_a_policy_hands_its_encoder_the_options_of_its_config(name: str) -> None:
    kwargs = {"channels": [4, 5], "feature_size": 6, "num_blocks": 1, "activation": "silu"}
    policy = make(name, pixels(12, 12, 1), encoder="impala", encoder_kwargs=kwargs, layer_norm=True)
    for encoder in (found := encoders(policy, ImpalaEncoder)):
        assert [layer.out_channels for layer in encoder.convolutions] == [4, 5]
        assert (encoder.output_size, len(encoder.blocks[0]), encoder.linear.norms is None) == (6, 1, False)
        assert encoder.activate is torch.nn.functional.silu
    assert len(found) >= 1
    same = create_policy({"type": name, **to_dict(policy.config)})  # as from a checkpoint
    same.model.load_state_dict(policy.model.state_dict())


@pytest.mark.parametrize("kind", ["joined", "separate"])
@pytest.mark.parametrize("name", WITH_ENCODERS)
def test_a_policy_hands_the_encoders_of_a_dict_their_options(name: str, kind: str) -> None:
    spaces: dict[str, gym.Space[Any]] = {
        "picture": pixels(7, 7, 3),
        "speed": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
    kwargs = {"image_encoder": "impala", "channels": [4], "feature_size": 6, "fusion_size": 9}
    options = {"encoder_kwargs": kwargs, "encoder_hidden_size_list": [5], "dict_encoder": kind}
    policy = make(name, gym.spaces.Dict(spaces), **options)
    for encoder in (found := encoders(policy, DictEncoder if kind == "joined" else SeparateEncoder)):
        sizes = {entry: below.output_size for entry, below in encoder.encoders.items()}
        assert (sizes, encoder.output_size) == ({"picture": 6, "speed": 2 if kind == "joined" else 5}, 9)
    assert len(found) >= 1
    same = create_policy({"type": name, **to_dict(policy.config)})  # as from a checkpoint
    same.model.load_state_dict(policy.model.state_dict())


def test_separate_encoders_together_with_a_named_encoder_are_refused() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)})
    with pytest.raises(ValueError, match=r"model.encoder must be None with model.dict_encoder 'separate', got 'dict'"):
        make("dqn", space, encoder="dict", dict_encoder="separate")


@pytest.mark.parametrize("name", WITH_ENCODERS)
@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"chanels": [4]}, ValueError, "'encoder_kwargs.chanels' of 'conv'; did you mean 'channels'"),
        ({"channels": "4"}, TypeError, "'encoder_kwargs.channels' must be"),
        ({"kernel_size": [8, 4, 3]}, ValueError, r"encoder_kwargs.kernel_size must be <= 7 .* encoder_kwargs.stride"),
    ],
)
def test_a_policy_refuses_options_that_its_encoder_cannot_have(
    name: str, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(name, pixels(7, 7, 3), encoder_kwargs=kwargs)


@pytest.mark.parametrize("name", WITH_LAYER_NORM)
def test_layer_norm_of_a_policy_normalises_every_hidden_layer(name: str) -> None:
    space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    without, with_it = (make(name, space, layer_norm=layer_norm) for layer_norm in (False, True))
    count = [sum(p.ndim == 1 or "s." in n for n, p in one.model.named_parameters()) for one in (without, with_it)]
    assert count[1] > count[0]
    obs = torch.randn(3, 4)
    assert torch.isfinite(with_it.eval_mode.forward(obs)["action"]).all()


WITH_MEMORY = ("r2d2", "r2d3", "ngu", "recurrent_ppo")
HINTS = {
    **dict.fromkeys((*names_of(QLearningPolicy), "pqn"), "learns from single transitions; r2d2 is"),
    **dict.fromkeys(
        (*names_of(QACPolicy), "acer"), "learns from single transitions; recurrent_ppo, from rollouts, has"
    ),
    **dict.fromkeys(with_actor(), "has no memory; recurrent_ppo is PPO"),
    "dreamerv3": "the world model has its own kind of",
    "tdmpc2": "a latent state depends on one observation; dreamerv3 has",
    "dt": "its last context_len steps; r2d2 and recurrent_ppo have",
}


@pytest.mark.parametrize("name", [name for name in (*ALGORITHMS, *WITHOUT_COLLECTING) if name not in WITH_MEMORY])
def test_a_policy_without_recurrent_layers_names_the_one_that_has_them(name: str) -> None:
    with pytest.raises(ValueError, match=f"model.core' does not exist here: .*{HINTS[name]} .*recurrent layers"):
        create_policy({"type": name, "model": {"core": {"type": "gru"}}})
