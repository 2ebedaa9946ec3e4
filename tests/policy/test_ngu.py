"""NGU: the policy of each episode, its rewards and discount factors, its memory, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs.corridor import CorridorEnv
from lightning_ding.envs.wrappers import PreviousStep
from lightning_ding.policy import NGUPolicy, R2D2Policy
from tests.algorithms.table import make_policy, state_of
from tests.conftest import MakeTrainer
from tests.policy.test_r2d2 import make as make_r2d2, sequences

SIZES: dict[str, Any] = {
    **{"obs_shape": 3, "action_shape": 2, "num_policies": 3, "embedding_size": 4},
    **{"core": {"hidden_size": 5}, "encoder_hidden_size_list": [6]},
}


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = {"burnin_step": 2, "learn_unroll_len": 4, "nstep": 3, "num_neighbours": 2, "model": SIZES}
    return NGUPolicy({**config, **changes})


def batch_of(policy: Any, number: int) -> Any:
    """Return sequences that were all collected by one policy of the family."""
    batch = sequences(policy)
    state = torch.cat([batch["recurrent_state"], torch.full((6, 1), float(number))], 1)
    return {**batch, "recurrent_state": state, "intrinsic_reward": torch.rand(batch["reward"].shape)}


def test_first_policy_learns_what_r2d2_learns() -> None:
    """With weights of 0 for the one-hot vector, the networks are the same."""
    r2d2, policy = make_r2d2(), make(discount_factor=0.9, discount_factor_last=0.5)
    for network, other in ((policy.model, r2d2.model), (policy.target_model, r2d2.target_model)):
        given = other.state_dict()
        given["encoder.core.rnn.weight_ih_l0"] = torch.cat(
            [given["encoder.core.rnn.weight_ih_l0"], torch.zeros(20, 3)], 1
        )
        assert not network.load_state_dict(given, strict=False).unexpected_keys
    loss, report = policy.loss(batch_of(policy, 0))
    expected, other_report = R2D2Policy.loss(r2d2, sequences(r2d2))
    assert_close(loss, expected)
    assert_close(report["priority"], other_report["priority"])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_rewards_and_discount_factors_are_those_of_the_policy_that_collected(number: int) -> None:
    policy = make(beta=0.4, discount_factor=0.9, discount_factor_last=0.1)
    batch = batch_of(policy, number)
    beta, gamma = (0.0, 0.4 / (1 + np.exp(-10)), 0.4)[number], (0.9, 0.7, 0.1)[number]
    assert_close(policy._rewards(batch), batch["reward"] + beta * batch["intrinsic_reward"])
    assert_close(policy._discount_factors(batch), torch.full((6,), gamma))


def test_number_of_the_policy_is_an_input_of_the_network_and_stays_in_its_state() -> None:
    network = make().model
    obs, state = torch.randn(4, 3), torch.zeros(4, network.state_size)
    other = state.clone()
    other[:, -1] = 2
    first, second = network.act(obs, state), network.act(obs, other)
    assert not torch.allclose(first["logit"], second["logit"])
    assert second["state"][:, -1].tolist() == [2.0] * 4


def test_each_episode_of_collecting_draws_a_policy_and_evaluations_take_the_first() -> None:
    policy = make()
    policy.seed(0)
    numbers = []
    for _ in range(60):
        output = policy.collect_mode.forward(torch.randn(2, 3))
        again = policy.collect_mode.forward(torch.randn(2, 3))
        assert output["is_first"].tolist() == [True, True]
        assert again["recurrent_state"][:, -1].tolist() == output["recurrent_state"][:, -1].tolist()
        numbers += output["recurrent_state"][:, -1].tolist()
        policy.collect_mode.reset([0, 1])
    assert all(25 < numbers.count(number) < 55 for number in range(3))
    policy.eval_mode.forward(torch.randn(2, 3))
    assert policy._evaluating.read(None, policy.model.first_state(2))[0][:, -1].tolist() == [0.0, 0.0]


class Step:
    """The result of a step of two envs."""

    def __init__(self, next_obs: Any) -> None:
        self.next_obs, self.reward = next_obs, np.zeros(2, np.float32)
        self.terminated = self.truncated = np.zeros(2, bool)


def test_transitions_get_the_novelty_of_their_next_observation() -> None:
    policy = make()
    policy.seed(0)
    memory = rl.EpisodicMemory(2)
    obs = torch.randn(6, 2, 3)
    for step in range(5):
        output = policy.collect_mode.forward(obs[step])
        columns = policy.collect_mode.process_transition(obs[step], output, Step(obs[step + 1]))
        with torch.no_grad():
            memory.add(torch.arange(2), policy.model.novelty(obs[step])[0], torch.full((2,), step == 0))
            expected = memory.rewards(torch.arange(2), *policy.model.novelty(obs[step + 1]))
        assert_close(columns["intrinsic_reward"], expected)
        assert bool((columns["intrinsic_reward"] > 0).all()) == (step > 0)


def test_envs_one_by_one_have_their_own_memory() -> None:
    together, apart = make(), make()
    for policy in (together, apart):
        policy.seed(0)
    obs = torch.randn(4, 2, 3)
    for step in range(3):
        output = together.collect_mode.forward(obs[step])
        columns = together.collect_mode.process_transition(obs[step], output, Step(obs[step + 1]))
        given = {env: obs[step, env] for env in (1, 0)}
        outputs = apart.collect_mode.forward(given)
        for env in (0, 1):
            timestep = Step(obs[step + 1, env])
            timestep.reward = np.float32(0)  # type: ignore[assignment]
            timestep.terminated = timestep.truncated = np.bool_(False)  # type: ignore[assignment]
            one = apart.collect_mode.process_transition(obs[step, env], outputs[env], timestep)
            assert one["intrinsic_reward"].shape == ()
            assert (float(one["intrinsic_reward"]) > 0) == bool(columns["intrinsic_reward"][env] > 0) == (step > 0)


def test_novelty_learns_from_real_steps_only_and_leaves_the_random_features() -> None:
    policy = make()
    batch = batch_of(policy, 1)
    loss, _ = policy.novelty_loss(batch)
    real = batch["mask"]
    networks = policy.model.novelty
    inverse = networks.inverse_error(batch["obs"][real], batch["next_obs"][real], batch["action"][real]).mean()
    assert_close(loss, inverse + networks.error(batch["next_obs"][real]).mean())
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    policy.learn_mode.forward(batch)
    changed = {name for name, value in policy.model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name for name in before if name.startswith("novelty.target")}.isdisjoint(changed)
    for part in ("novelty.embedding", "novelty.inverse_model", "novelty.predictor", "encoder", "head"):
        assert any(name.startswith(part) for name in changed), part


def test_wrapper_adds_the_last_action_and_reward() -> None:
    env = PreviousStep(CorridorEnv(size=2))
    obs, _ = env.reset(seed=0)
    assert {name: part.tolist() for name, part in obs.items()} == {
        **{"observation": [-1.0, -1.0], "previous_action": [0.0] * 4, "previous_reward": [0.0]}
    }
    env.step(0)
    env.step(1)
    obs, reward, terminated, _, _ = env.step(2)
    assert (reward, terminated) == (1.0, True)
    assert obs["previous_action"].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert obs["previous_reward"].tolist() == [1.0]
    assert env.observation_space.contains(obs)
    pendulum = PreviousStep(gym.make("Pendulum-v1"))
    pendulum.reset(seed=0)
    assert pendulum.step(np.array([0.5], np.float32))[0]["previous_action"].tolist() == [0.5]
    with pytest.raises(ValueError, match="action_space must be Discrete or Box with the wrapper previous_step"):
        PreviousStep(_Many())


class _Many(CorridorEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.MultiDiscrete([2, 2])  # type: ignore[assignment]


def test_corridor_winds_and_walls_stop_a_move() -> None:
    env: Any = CorridorEnv(size=3)
    env.reset()
    for action in (1, 2, 3, 0, 1):  # walls below, to the left and above; then one cell to the right, and a wall below
        obs = env.step(action)[0]
    assert obs.tolist() == [-1.0, 0.0]
    found = [env.step(action)[1:4] for action in (0, 1, 3, 1, 2, 2, 1, 0, 0)]
    assert found == [(0.0, False, False)] * 8 + [(1.0, True, False)]
    env.reset()
    assert [env.step(2)[2:4] for _ in range(18)] == [(False, False)] * 17 + [(False, True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"num_policies": 1}}, r"model\.num_policies must be >= 2, got 1"),
        ({"memory_size": 5}, r"memory_size must be >= num_neighbours \(10\), got 5"),
        ({"discount_factor": 1.0}, r"discount_factor must be in \[0, 1\) with ngu, got 1.0"),
        ({"discount_factor_last": 1.0}, r"discount_factor_last must be in \[0, 1\), got 1.0"),
        ({"model": {"core": {"residual": True}}}, r"model\.core\.residual must be False with ngu"),
        ({"lifelong_max": 0.5}, r"lifelong_max must be >= 1, got 0.5"),
    ],
)
def test_options_out_of_their_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NGUPolicy(changes)


def test_run_without_the_last_action_warns() -> None:
    box = gym.spaces.Box(-1, 1, (3,))
    with pytest.warns(UserWarning, match="no entries previous_action and previous_reward"):
        NGUPolicy().build(box, gym.spaces.Discrete(2))


@pytest.mark.parametrize("overlap", [False, True])
def test_interrupted_run_continues_with_the_same_bits(overlap: bool, tmp_path: Path, make_trainer: MakeTrainer) -> None:
    """The break is in the middle of episodes, whose memories are in the checkpoint."""

    def run(epochs: int, folder: str, ckpt_path: Path | None = None) -> Any:
        torch.manual_seed(0)
        policy: Any = make_policy("ngu")
        data: dict[str, Any] = {"num_envs": 2, "seed": 3, "max_env_step": 5000, "wrappers": ["previous_step"]}
        data |= {"mode": "async", "overlap": True} if overlap else {}
        datamodule = ReplayDataModule(CorridorEnv, **data, rounds_per_epoch=3)
        trainer = make_trainer(
            max_epochs=epochs, callbacks=[RunCheckpoint(tmp_path / folder)], enable_checkpointing=True
        )
        trainer.fit(policy, datamodule, ckpt_path=ckpt_path)
        return state_of(policy, datamodule), policy._novelty.state_dict()

    whole, memory = run(5, "whole")
    _, half = run(2, "half")
    assert int(half["count"].max()) > 1  # embeddings of episodes that continue
    continued, other = run(5, "half", tmp_path / "half" / "last.ckpt")
    assert continued == whole
    assert all(torch.equal(memory[name], other[name]) for name in ("count", "distance", "error"))
