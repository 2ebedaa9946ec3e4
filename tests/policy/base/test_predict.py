"""Actions of trained policies for ``env.step``: of one observation, of a batch, with memory, after a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from lightning_ding import nested
from lightning_ding.envs.teams.games import TwoStepGame
from lightning_ding.policy import DDPGPolicy, DQNPolicy, DTPolicy, Policy, PPOPolicy, R2D2Policy
from lightning_ding.policy.base.predict import to_batch
from tests.algorithms.table import ALGORITHMS, TEAMS, make_policy
from tests.algorithms.test_spaces import DISCRETE, HYBRID, INTEGERS, LEGAL, MASKS, OBSERVATIONS
from tests.policy.saved import write_checkpoint
from tests.toys.reference_policies import PlainDQN

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
DQN: dict[str, Any] = {"model": {"encoder_hidden_size_list": [8]}}


def loaded(policy: Policy[Any], tmp_path: Path) -> Any:
    return type(policy).load_from_checkpoint(write_checkpoint(policy, tmp_path / "policy.ckpt"), weights_only=True)


@pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
def test_every_algorithm_acts_in_its_env_without_further_conversion(name: str, tmp_path: Path) -> None:
    env = TwoStepGame() if name in TEAMS else gym.make(ALGORITHMS[name].env_id, disable_env_checker=False)
    policy = loaded(make_policy(name).build(env.observation_space, env.action_space), tmp_path)
    obs, _ = env.reset(seed=0)
    for deterministic in (True, False):
        actor = policy.actor(deterministic=deterministic)
        for act in (actor, lambda obs, actor=actor: actor(nested.stack_arrays([obs, obs]))[1]):
            action = act(obs)
            assert env.action_space.contains(action), action
            obs, *_ = env.step(action)
    env.close()


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name not in ("r2d2", "r2d3", "ngu", "recurrent_ppo", "dreamerv3", "tdmpc2")]
)
def test_prediction_is_that_of_the_eval_mode(name: str) -> None:
    env = gym.make(ALGORITHMS[name].env_id)
    policy = make_policy(name).build(env.observation_space, env.action_space)
    policy.normaliser.begin(env.observation_space, norm_obs=True)
    obs = np.random.default_rng(0).normal(size=(5, *env.observation_space.shape)).astype(np.float32)  # type: ignore[misc]
    policy.normaliser.update({"obs": torch.from_numpy(3 * obs + 1)})
    expected = policy.eval_mode.forward(obs)["action"].numpy()
    np.testing.assert_allclose(policy.predict(torch.from_numpy(obs)), expected, rtol=1e-6)
    np.testing.assert_allclose(policy.predict(obs[3].tolist()), expected[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=list(OBSERVATIONS))
def test_one_observation_and_a_batch_of_any_space_are_told_apart(space: spaces.Space[Any]) -> None:
    policy = make_policy("ppo").build(space, spaces.Discrete(2))
    batch: Any = batch_space(space, 3)
    obs = batch.sample()
    several = policy.predict(obs)
    assert (several.shape, several.dtype) == ((3,), np.int64)
    singles = [policy.predict(one) for one in iterate(batch, obs)]
    assert all(np.shape(action) == () for action in singles)
    assert singles == several.tolist()


@pytest.mark.parametrize("space", [*DISCRETE.values(), INTEGERS, HYBRID], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_in_the_space_of_the_env(space: spaces.Space[Any], deterministic: bool) -> None:
    policy = make_policy("ppo").build(VECTOR, space)
    action = policy.predict(VECTOR.sample(), deterministic=deterministic)
    assert space.contains(action)
    actions = policy.predict(np.stack([VECTOR.sample()] * 4), deterministic=deterministic)
    assert batch_space(space, 4).contains(actions)


def test_action_of_64_bits_stays_within_bounds_that_32_bits_exceed() -> None:
    box = spaces.Box(-0.1, 0.1, (1,), np.float64)
    policy: Any = DDPGPolicy().build(VECTOR, box)
    with torch.no_grad():
        policy.action_bounds.scale.fill_(1e3)
    action = policy.predict(np.ones((20, 3)))
    assert action.dtype == np.float64
    assert batch_space(box, 20).contains(action)
    assert np.abs(action).max() == 0.1


@pytest.mark.parametrize("name", MASKS)
def test_masked_actions_are_not_taken(name: str) -> None:
    mask = np.array(MASKS[name], np.int8)
    space = spaces.Dict({"action_mask": spaces.MultiBinary(len(mask)), "x": VECTOR})
    policy = make_policy("ppo").build(space, DISCRETE[name])
    obs = [{"action_mask": mask, "x": VECTOR.sample()} for _ in range(20)]
    actions = [policy.predict(one, deterministic=number % 2 == 0) for number, one in enumerate(obs)]
    taken = {tuple(np.atleast_1d(action).tolist()) for action in actions}
    legal: Any = LEGAL[name]
    assert taken <= legal


def test_exploration_is_that_of_the_run() -> None:
    policy = DQNPolicy({**DQN, "other": {"eps": {"start": 1.0, "end": 0.0, "decay": 100}}}).build(
        VECTOR, spaces.Discrete(50)
    )
    policy.seed(0)
    obs = np.zeros((200, 3), np.float32)
    assert len(set(policy.predict(obs, deterministic=False).tolist())) > 20
    policy.progress.env_step = 1000
    np.testing.assert_array_equal(policy.predict(obs, deterministic=False), policy.predict(obs))


class TestMemory:
    @pytest.mark.parametrize("name", ["r2d2", "r2d2-gtrxl", "dreamerv3"])
    def test_actor_remembers_and_forgets_by_env(self, name: str) -> None:
        torch.manual_seed(0)
        policy: Any = make_policy(name).build(VECTOR, spaces.Discrete(50))
        obs = 5 * np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
        actor, again = policy.actor(), policy.actor()
        whole = [actor(step) for step in obs]
        assert len(np.unique(whole)) > 1
        first = [again(step)[0] for step in obs[:3]]
        np.testing.assert_array_equal(first, [actions[0] for actions in whole[:3]])
        again.reset([1])
        state = again._memory["_evaluating"].state_dict()
        assert state["is_first"].tolist() == [False, True]
        assert state["state"][1].tolist() == [0.0] * policy.model.state_size
        again.reset()
        np.testing.assert_array_equal([again(step) for step in obs], whole)

    def test_actors_do_not_disturb_each_other_or_the_policy(self) -> None:
        policy: Any = make_policy("recurrent_ppo").build(VECTOR, spaces.Discrete(2))
        obs = np.ones((4, 3), np.float32)
        policy.eval_mode.forward(obs)
        kept = policy._evaluating.state_dict()["state"]
        policy.actor()(obs[:2])
        other = policy.actor(deterministic=False)
        other(obs)
        other.reset()
        assert torch.equal(policy._evaluating.state_dict()["state"], kept)
        assert policy._collecting.state_dict()["state"] is None

    def test_policy_with_memory_refuses_to_predict_and_names_the_actor(self) -> None:
        policy = R2D2Policy().build(VECTOR, spaces.Discrete(2))
        with pytest.raises(ValueError, match=r"R2D2Policy acts on earlier observations.*policy\.actor\(determini"):
            policy.predict(np.zeros(3))

    def test_correlated_noise_is_memory_of_the_exploring_actor_alone(self) -> None:
        policy: Any = make_policy("ddpg").build(VECTOR, spaces.Box(-1, 1, (1,)))
        policy.predict(np.zeros(3))
        with pytest.raises(ValueError, match="acts on earlier observations"):
            policy.predict(np.zeros(3), deterministic=False)
        policy.actor(deterministic=False)(np.zeros(3))
        assert policy.ou_noise.state_dict() == type(policy.ou_noise)(0.1).state_dict()

    def test_policy_that_acts_on_rewards_gets_them_from_the_actor(self) -> None:
        policy = DTPolicy({"context_len": 2, "rtg_target": 9.0}).build(VECTOR, spaces.Discrete(2))
        actor = policy.actor()
        actor(np.zeros(3))
        actor(np.zeros(3), reward=2.0)
        assert actor._memory["_contexts"]._columns["return_to_go"].tolist() == [[9.0, 7.0]]
        with pytest.raises(ValueError, match="reward must be the rewards of the previous steps, got None"):
            actor(np.zeros(3))
        with pytest.raises(ValueError, match="deterministic must be True for DTPolicy"):
            policy.actor(deterministic=False)(np.zeros(3))


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (VECTOR, np.zeros(2), r"obs must be of shape \(3,\), or \(B, 3\) for a batch, got \(2,\)"),
        (VECTOR, np.zeros((2, 2, 3)), r"obs must be of shape \(3,\), or \(B, 3\) for a batch, got \(2, 2, 3\)"),
        (VECTOR, {"obs": np.zeros(3)}, r"obs must be numbers, as the space Box.* has them, got {'obs'"),
        (VECTOR, ["a", "b", "c"], r"obs must be numbers that float32 can hold.*, got dtype\('<U1'\)"),
        (spaces.Box(0, 255, (8,), np.uint8), np.zeros(8), r"numbers that uint8 can hold.*, got dtype\('float64'\)"),
        (spaces.Dict({"a": VECTOR}), {"b": np.zeros(3)}, r"obs must be a dict with the keys \['a'\], got \['b'\]"),
        (spaces.Dict({"a": VECTOR}), np.zeros(3), r"obs must be a dict with the keys \['a'\], got 'ndarray'"),
        (spaces.Dict({"a": VECTOR}), {"a": np.zeros(2)}, r"obs\.a must be of shape \(3,\)"),
        (spaces.Dict({"a": VECTOR, "b": VECTOR}), {"a": np.zeros(3), "b": np.zeros((1, 3))}, "one observation, or a"),
        (spaces.Tuple([VECTOR, VECTOR]), (np.zeros((2, 3)), np.zeros((1, 3))), "a batch of equal length in every"),
    ],
)
def test_observation_that_does_not_fit_is_refused(space: spaces.Space[Any], obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_batch(obs, space)


BYTES = spaces.Box(0, 255, (3,), np.uint8)
TABLE = spaces.MultiDiscrete([3, 2], start=[0, 4])


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (BYTES, [300, -1, 5], "obs must be integers from 0 to 255, as the space Box.* has them, got 300"),
        (BYTES, np.array([[1, 2, 3], [1, -1, 3]], np.int8), "obs must be integers from 0 to 255,.*, got -1"),
        (BYTES, torch.tensor([1, 2, 256]), "obs must be integers from 0 to 255,.*, got 256"),
        (spaces.Discrete(5), 7, r"obs must be integers from 0 to 4, as the space Discrete\(5\) has them, got 7"),
        (spaces.Discrete(5), -1, "obs must be integers from 0 to 4,.*, got -1"),
        (spaces.Discrete(3, start=2), [2, 4, 5], "obs must be integers from 2 to 4,.*, got 5"),
        (TABLE, [[2, 4], [2, 6]], "obs must be integers from 4 to 5,.*, got 6"),
        (TABLE, np.array([3, 5], np.uint64), "obs must be integers from 0 to 2,.*, got 3"),
        (spaces.MultiBinary(2), [0, 2], "obs must be integers from 0 to 1,.*, got 2"),
        (
            spaces.Dict({"x": VECTOR, "at": TABLE}),
            {"x": np.zeros(3), "at": [0, 0]},
            r"obs\.at must be integers from 4 to 5,.*, got 0",
        ),
    ],
)
def test_integers_outside_of_the_space_are_refused(space: spaces.Space[Any], obs: Any, message: str) -> None:
    policy = make_policy("ppo").build(space, spaces.Discrete(2))
    for act in (policy.predict, policy.actor(deterministic=False)):
        with pytest.raises(ValueError, match=f"{message}$"):
            act(obs)


def test_integers_within_the_space_are_taken() -> None:
    table = to_batch(np.array([[2, 5], [0, 4]], np.uint8), TABLE)[0]
    assert (table.dtype, table.tolist()) == (np.int64, [[2, 5], [0, 4]])
    assert to_batch([0, 7, 255], BYTES)[0].tolist() == [[0, 7, 255]]
    assert to_batch(np.zeros((0, 3), np.int64), BYTES)[0].shape == (0, 3)
    small = spaces.Box(0, 100, (1,), np.uint8)  # the bounds of a Box are not checked
    assert to_batch([200], small)[0].tolist() == to_batch(np.array([200], np.uint8), small)[0].tolist() == [[200]]


def test_observation_that_could_be_a_batch_of_smaller_ones_is_decided_by_the_space() -> None:
    square = spaces.Box(-1, 1, (3, 3), np.float32)
    assert to_batch(np.zeros((3, 3)), square)[1]
    assert not to_batch(np.zeros((3, 3)), VECTOR)[1]


def test_integers_of_another_size_and_reversed_arrays_are_taken() -> None:
    batch, is_single = to_batch([1, 2], spaces.MultiDiscrete([3, 3], dtype=np.int32))
    assert (batch.dtype, batch.tolist(), is_single) == (np.int32, [[1, 2]], True)
    policy = DQNPolicy(DQN).build(VECTOR, spaces.Discrete(2))
    assert policy.predict(np.zeros((4, 3), np.float32)[::-1]).shape == (4,)


def test_spaces_are_part_of_a_checkpoint_and_needed() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}})
    with pytest.raises(RuntimeError, match=r"does not know the spaces of its env: call policy\.build"):
        policy.predict(np.zeros(3))
    policy.build(VECTOR, spaces.Discrete(2))
    checkpoint: dict[str, Any] = {}
    policy.on_save_checkpoint(checkpoint)
    for other in (policy, DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}})):
        other.on_load_checkpoint(checkpoint)
        assert other.env_spaces == (VECTOR, spaces.Discrete(2))


def test_checkpoint_of_an_earlier_version_has_no_spaces() -> None:
    policy, checkpoint = DQNPolicy(DQN).build(VECTOR, spaces.Discrete(2)), dict[str, Any]()
    policy.on_save_checkpoint(checkpoint)
    other = DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}})
    other.on_load_checkpoint({name: value for name, value in checkpoint.items() if name != "env_spaces"})
    assert other.env_spaces is None


def test_action_that_is_not_finite_is_refused() -> None:
    policy = PPOPolicy().build(VECTOR, spaces.Box(-np.inf, np.inf, (1,)))
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(ValueError, match="the policy's action must be finite, got"):
        policy.predict(np.zeros(3))


def test_reward_is_refused_by_a_policy_that_does_not_act_on_it() -> None:
    policy = DQNPolicy(DQN).build(VECTOR, spaces.Discrete(2))
    with pytest.raises(ValueError, match="reward must be None for DQNPolicy"):
        policy.actor()(np.zeros(3), reward=1.0)


def test_policy_in_the_form_of_di_engine_predicts() -> None:
    env = gym.make("CartPole-v1")
    policy = PlainDQN().build(env.observation_space, env.action_space)
    obs, _ = env.reset(seed=0)
    action = policy.predict(obs)
    assert env.action_space.contains(action)
    assert policy.predict(np.stack([obs] * 3)).tolist() == [action] * 3
    assert nested.length(policy.predict(np.stack([obs] * 3), deterministic=False)) == 3
