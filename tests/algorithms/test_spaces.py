"""Envs of all kinds of observations and actions: every space is collected from and learned from, once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import Policy
from lightning_ding.worker import InteractionSerialEvaluator
from tests.algorithms.table import make_datamodule, make_policy, needs_demonstrations, random_steps
from tests.conftest import MakeTrainer
from tests.envs.any_spaces import AnySpaces

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "discrete from -2": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([3, 2], start=[0, 4]),
    "table": spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])),
    "multi-binary": spaces.MultiBinary(4),
    "integers": spaces.Box(-5, 5, (3,), np.int32),
    "bytes": spaces.Box(0, 255, (6,), np.uint8),
    "half floats": spaces.Box(-1, 1, (3,), np.float16),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), VECTOR]),
    "nested": spaces.Dict(
        {"at": spaces.Tuple([spaces.MultiDiscrete([2, 3])]), "bytes": spaces.Box(0, 255, (2,), np.uint8)}
    ),
}
DISCRETE: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "discrete from 2": spaces.Discrete(3, start=2),
    "multi-discrete from -1, 5": spaces.MultiDiscrete([2, 3], start=[-1, 5]),
    "multi-binary": spaces.MultiBinary(3),
}
MASKS = {"discrete": [0, 1, 1], "multi-discrete from -1, 5": [0, 1, 1, 0, 1], "multi-binary": [0, 1, 1, 1, 1, 0]}
MASKS["discrete from 2"] = MASKS["discrete"]
LEGAL = {
    "discrete": {(1,), (2,)},
    "discrete from 2": {(3,), (4,)},
    "multi-discrete from -1, 5": {(0, 5), (0, 7)},
    "multi-binary": {(1, 0, 0), (1, 1, 0)},
}
INTEGERS = spaces.Box(np.array([-1, 2]), np.array([1, 4]), (2,), np.int16)
HYBRID = spaces.Dict({"action_type": spaces.Discrete(3, start=2), "action_args": spaces.Box(0, 2, (1,), np.int64)})


def train(
    make_trainer: MakeTrainer, name: str, env_kwargs: dict[str, Any], **arguments: Any
) -> tuple[Policy[Any], Any]:
    """Return a policy that went through random collecting, one round of learning and an evaluation, and its data."""
    AnySpaces.acted.clear()
    changes = {"model": {"obs_shape": None, "action_shape": None}, "eval": {"evaluator": {"n_episode": 2}}}
    policy = make_policy(name, **deep_merge(changes, arguments.pop("config", {})))
    rounds = {"max_env_step": 48, "rounds_per_epoch": 1}
    datamodule = make_datamodule(name, env=AnySpaces, env_kwargs=env_kwargs, **rounds, **arguments)
    make_trainer().fit(policy, datamodule)
    assert policy.progress.train_iter > 0
    return policy, datamodule


def of_a_network(policy: Policy[Any], obs: Any) -> torch.Tensor:
    """Return what the network says of B observations, as one row for each."""
    model: Any = policy.model
    output = model.compute_actor(obs) if hasattr(model, "compute_actor") else model(obs)
    return torch.cat([leaf.flatten(1).float() for part in output.values() for leaf in tensors(part)], dim=1)


def tensors(part: Any) -> list[torch.Tensor]:
    return [leaf for one in part for leaf in tensors(one)] if isinstance(part, list) else nested.leaves(part)


@pytest.mark.parametrize("name", ["dqn", "ppo", "sac"])
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_every_kind_of_observation_is_collected_and_learned_from(
    make_trainer: MakeTrainer, name: str, kind: str
) -> None:
    space, actions = OBSERVATIONS[kind], spaces.Box(-1, 1, (2,)) if name == "sac" else spaces.Discrete(2)
    policy, _ = train(make_trainer, name, {"observation": space, "action": actions})

    space.seed(0)
    drawn = [space.sample() for _ in range(20)]
    with torch.no_grad():
        said = [of_a_network(policy, nested.stack([nested.as_dicts(one)])) for one in drawn]
    for row, one in enumerate(drawn[1:], start=1):
        is_same = bool(torch.equal(flat(one), flat(drawn[0])))
        assert torch.allclose(said[row], said[0], rtol=0, atol=1e-7) == is_same, (one, drawn[0])


def flat(obs: Any) -> torch.Tensor:
    return torch.cat(
        [torch.as_tensor(np.asarray(leaf)).flatten().float() for leaf in nested.leaves(nested.as_dicts(obs))]
    )


@pytest.mark.parametrize("kind", ["discrete from -2", "tuple"])
def test_observations_of_an_env_are_acted_on_as_they_are(kind: str) -> None:
    space = OBSERVATIONS[kind]
    policy = make_policy("dqn", model={"obs_shape": None, "action_shape": None}).build(space, spaces.Discrete(2))
    obs = [space.sample() for _ in range(3)]
    by_env = policy.eval_mode.forward(dict(enumerate(obs)))
    batch = tuple(map(np.stack, zip(*obs, strict=True))) if kind == "tuple" else np.array(obs)
    at_once = policy.eval_mode.forward(batch)["action"]
    assert [by_env[row]["action"].item() for row in range(3)] == at_once.tolist()


@pytest.mark.parametrize("name", ["dqn", "ppo", "trpo", "a2c"])
@pytest.mark.parametrize("kind", DISCRETE)
def test_every_kind_of_discrete_action_lies_in_its_space(make_trainer: MakeTrainer, name: str, kind: str) -> None:
    policy, datamodule = train(make_trainer, name, {"observation": VECTOR, "action": DISCRETE[kind]})

    acted = np.array(AnySpaces.acted).reshape(len(AnySpaces.acted), -1)
    low = np.ravel(policy.config.model.action_start)
    sizes = np.ravel(policy.config.model.action_shape)
    assert acted.min(0).tolist() == low.tolist()
    assert acted.max(0).tolist() == (low + sizes - 1).tolist()
    if isinstance(datamodule, ReplayDataModule):
        kept = datamodule.buffer.sample(40, 0)["action"]  # type: ignore[union-attr]
        assert kept.dtype == torch.int64
        assert kept.view(40, -1).amin(0).tolist() == [0] * len(sizes)
        assert kept.view(40, -1).amax(0).tolist() == (sizes - 1).tolist()


@pytest.mark.parametrize("name", ["mdqn", "sql", "sqil", "dqfd", "recurrent_ppo"])
def test_every_choice_of_several_dimensions_is_collected_and_learned_from(make_trainer: MakeTrainer, name: str) -> None:
    kwargs = {"observation": VECTOR, "action": spaces.MultiDiscrete([2, 3])}
    data = {"demonstrations": random_steps(AnySpaces(**kwargs))} if needs_demonstrations(name) else {}
    policy, _ = train(make_trainer, name, kwargs, **data)
    acted = np.array(AnySpaces.acted)
    assert (acted.min(0).tolist(), acted.max(0).tolist()) == ([0, 0], [1, 2])
    assert tuple(policy.config.model.action_shape) == (2, 3)


@pytest.mark.parametrize("name", ["dqn", "ppo", "trpo", "ppo_offpolicy", "impala", "a2c", "pg"])
@pytest.mark.parametrize("kind", DISCRETE)
def test_masked_actions_are_legal_when_they_are_random_and_when_they_are_not(
    make_trainer: MakeTrainer, name: str, kind: str
) -> None:
    space = DISCRETE[kind]
    train(make_trainer, name, {"observation": VECTOR, "action": space, "mask": MASKS[kind]})
    assert {tuple(np.ravel(action).tolist()) for action in AnySpaces.acted} == LEGAL[kind]


@pytest.mark.parametrize("name", ["sac", "ddpg", "ppo"])
def test_a_box_of_integers_gets_integers(make_trainer: MakeTrainer, name: str) -> None:
    train(make_trainer, name, {"observation": VECTOR, "action": INTEGERS})
    acted = np.array(AnySpaces.acted)
    assert acted.dtype == np.int16
    assert (acted.min(0).tolist(), acted.max(0).tolist()) == ([-1, 2], [1, 4])


@pytest.mark.parametrize("name", ["ddpg", "td3", "pdqn", "d4pg", "ppo", "ppo_offpolicy", "impala", "recurrent_ppo"])
def test_a_hybrid_action_begins_where_its_choice_does(make_trainer: MakeTrainer, name: str) -> None:
    train(make_trainer, name, {"observation": VECTOR, "action": HYBRID})
    assert {int(action["action_type"]) for action in AnySpaces.acted} == {2, 3, 4}
    assert {int(action["action_args"][0]) for action in AnySpaces.acted} == {0, 1, 2}


def test_processes_of_envs_give_the_same_observations_as_envs_here() -> None:
    observations = spaces.Dict({"place": OBSERVATIONS["discrete from -2"], "more": OBSERVATIONS["nested"]})
    kwargs = {"observation": observations, "action": DISCRETE["multi-binary"]}
    seen = []
    for mode in ("sync", "async"):
        env = make_vector_env(AnySpaces, 2, mode, env_kwargs=kwargs)
        env.reset(seed=[1, 2])  # type: ignore[arg-type]
        seen.append(env.step(np.ones((2, 3), np.int8))[0])
        env.close()
    assert [leaf.tolist() for leaf in nested.leaves(seen[0])] == [leaf.tolist() for leaf in nested.leaves(seen[1])]


def test_norm_obs_leaves_integers_alone(make_trainer: MakeTrainer) -> None:
    _, datamodule = train(
        make_trainer, "dqn", {"observation": OBSERVATIONS["tuple"], "action": spaces.Discrete(2)}, norm_obs=True
    )
    kept = datamodule.buffer.sample(20, 0)["obs"]
    assert kept["0"].dtype == torch.int64
    assert set(kept["0"].tolist()) == {1, 2, 3}


def test_a_policy_that_is_loaded_alone_gives_actions_of_the_env(tmp_path: Any, make_trainer: MakeTrainer) -> None:
    space = DISCRETE["multi-discrete from -1, 5"]
    trainer, policy = make_trainer(), make_policy("ppo", model={"obs_shape": None, "action_shape": None})
    kwargs = {"observation": OBSERVATIONS["discrete from -2"], "action": space}
    trainer.fit(policy, make_datamodule("ppo", env=AnySpaces, env_kwargs=kwargs, max_env_step=16))
    trainer.save_checkpoint(tmp_path / "policy.ckpt")
    loaded = type(policy).load_from_checkpoint(tmp_path / "policy.ckpt", weights_only=True)
    action = loaded.eval_mode.forward(np.array([-2, 2]))["action"]
    assert action.equal(policy.eval_mode.forward(np.array([-2, 2]))["action"])
    assert all(space.contains(row.numpy()) for row in action)


def test_an_evaluator_by_hand_takes_envs_with_tuples() -> None:
    kwargs = {"observation": OBSERVATIONS["tuple"], "action": DISCRETE["discrete from 2"]}
    env = gym.vector.SyncVectorEnv([lambda: AnySpaces(**kwargs)] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    policy = make_policy("dqn", model={"obs_shape": None, "action_shape": None})
    policy.build(env.single_observation_space, env.single_action_space)
    evaluator = InteractionSerialEvaluator({"n_episode": 4, "eval_freq": 1}, env, policy.eval_mode)
    assert evaluator.eval()[1]["return_mean"] == 15.0  # 1 + 2 + 3 + 4 + 5


def test_an_option_that_the_actions_have_no_use_for_is_refused() -> None:
    policy = make_policy(
        "ppo", model={"action_start": 2, "obs_shape": None, "action_shape": None, "action_space": None}
    )
    with pytest.raises(ValueError, match=r"model.action_start must be None for an env with the actions Box"):
        policy.build(VECTOR, spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("frame_stack", [1, 2])
def test_stacked_images_of_colours_go_through_convolutions(make_trainer: MakeTrainer, frame_stack: int) -> None:
    images = spaces.Box(0, 255, (2, 8, 8, 3), np.uint8)
    buffer = {"frame_stack": frame_stack} if frame_stack > 1 else {}
    policy, datamodule = train(
        make_trainer,
        "dqn",
        {"observation": images, "action": spaces.Discrete(2)},
        config={"other": {"replay_buffer": buffer}, "model": {"encoder_hidden_size_list": [4, 4, 4, 8]}},
    )
    first: Any = policy.model.encoder.convolutions[0]  # type: ignore[union-attr, index]
    assert first.in_channels == 6
    assert datamodule.buffer.sample(4, 0)["obs"].shape == (4, 2, 8, 8, 3)
