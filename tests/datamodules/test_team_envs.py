"""Runs in the env of a team: legal actions, logs, exact resume, normalisation, evaluation and videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.entry.enjoy import enjoy
from lightning_ding.entry.evaluate import evaluate
from lightning_ding.envs import NormaliseObservation, make_vector_env
from lightning_ding.policy import PPOPolicy
from lightning_ding.policy.base.normaliser import Normaliser
from lightning_ding.policy.base.rank_statistics import _combined, _like
from lightning_ding.policy.random import random_eval_mode
from lightning_ding.worker.actions import random_output
from tests.conftest import MakeTrainer

CAMP = "tests.toys.parallel_games.Camp"
MODULE = ["tests.toys.parallel_games"]
LEAVES = {"leaves": {"b": 2}, "is_strict": True}


def test_random_actions_are_legal_and_those_of_agents_that_have_left_are_ignored() -> None:
    env = make_vector_env(CAMP, 2, env_kwargs=LEAVES, seed=0)  # which raises for an illegal action
    player = random_eval_mode(env.single_action_space, seed=0)
    obs, drawn, of_dead = env.reset(seed=0)[0], set(), set()
    for number in range(60):
        random = player.forward(obs)["action"].numpy() if number % 2 else random_output(env, obs)["action"]
        drawn |= {tuple(one) for one in random.tolist()}
        of_dead |= set(random[obs["alive"] == 0].tolist())
        obs = env.step(random)[0]
    assert {b for _, b, _ in drawn} == {0, 1, 2}
    assert of_dead == {0}
    env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_resumed_run_ends_with_the_weights_of_a_whole_one(mode: str, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    arguments: Any = {"mode": mode, "norm_obs": True, "norm_reward": True, "num_envs": 3}
    whole, _ = _run(make_trainer, 72, tmp_path / "whole", **arguments)
    _run(make_trainer, 48, tmp_path / "half", **arguments)
    resumed, _ = _run(make_trainer, 72, tmp_path / "half", tmp_path / "half" / "last.ckpt", **arguments)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def _run(make_trainer: MakeTrainer, steps: int, folder: Path, file: Path | None = None, **arguments: Any) -> Any:
    torch.manual_seed(0 if file is None else 9)
    policy = PPOPolicy({"collect": {"n_sample": 24}, "learn": {"batch_size": 12, "epoch_per_collect": 1}})
    data = RolloutDataModule(CAMP, env_kwargs=LEAVES, max_env_step=steps, **arguments)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder)], limit_val_batches=0)
    trainer.fit(policy, data, ckpt_path=file, weights_only=True)
    return policy, trainer


def test_returns_of_agents_are_logged_and_a_trained_team_is_evaluated_and_shown(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    env = {**LEAVES, "render_mode": "rgb_array"}
    keys = ["return_a", "return_b", "return_c"]
    _, trainer = _run(make_trainer, 24, tmp_path, num_envs=3, info_keys=keys, eval_env_kwargs=env)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert sum(found[f"collect/{one}"] for one in keys) == pytest.approx(found["collect/return_mean"], rel=1e-5)
    file = str(tmp_path / "last.ckpt")
    scores = evaluate(file, 3, import_names=MODULE)
    assert scores["lengths"] == [4, 4, 4]
    assert sum(scores["info_means"][one] for one in keys) == pytest.approx(scores["mean"])
    ((_, video),) = enjoy(file, video=str(tmp_path / "team.gif"), import_names=MODULE)
    assert video is not None
    with Image.open(video) as image:
        assert image.size == (16, 16)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_returns_of_agents_are_logged_where_a_wrapper_truncates(
    mode: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    keys = ["return_a", "return_b", "return_c"]
    cut: Any = {"num_envs": 3, "mode": mode, "info_keys": keys, "wrappers": [{"time_limit": {"max_episode_steps": 3}}]}
    _, trainer = _run(make_trainer, 24, tmp_path, **cut)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert found["collect/length_mean"] == 3
    assert sum(found[f"collect/{one}"] for one in keys) == pytest.approx(found["collect/return_mean"], rel=1e-5)


# ---------------------------------------------------------------------------------------------------- normalisation

SPACE = spaces.Dict(
    {
        "agent_state": spaces.Box(-9, 9, (2, 2), np.float32),
        "global_state": spaces.Box(-9, 9, (1,), np.float32),
        "alive": spaces.Box(0, 1, (2,), np.float32),
        "agent_reward": spaces.Box(-9, 9, (2,), np.float32),
        "action_mask": spaces.MultiBinary(4),
    }
)
SEEN = torch.tensor([[[1.0, 0.0], [2.0, 5.0]], [[3.0, 0.0], [4.0, 7.0]], [[5.0, 0.0], [0.0, 0.0]]])
OBS = {
    "agent_state": SEEN,
    "global_state": torch.tensor([[1.0], [3.0], [5.0]]),
    "alive": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]),
    "agent_reward": torch.tensor([[1.0, 2.0]] * 3),
    "action_mask": torch.ones(3, 4, dtype=torch.int8),
}
DEVIATION = (8 / 3) ** 0.5  # of 1, 3 and 5


def test_only_what_agents_and_the_critic_see_is_normalised_and_zeros_stay() -> None:
    normaliser = Normaliser()
    normaliser.begin(SPACE, norm_obs=True)
    normaliser.update({"obs": OBS})
    normal = normaliser.normalise_obs(OBS)
    assert normal["agent_state"][:, 0, 0].tolist() == pytest.approx([-2 / DEVIATION, 0, 2 / DEVIATION])
    assert normal["agent_state"][:, 0, 1].tolist() == [0, 0, 0]  # numbers that fill up the observation
    assert normal["agent_state"][:, 1].tolist() == [[-1, -1], [1, 1], [0, 0]]  # of the two steps in which it was there
    assert normal["global_state"][:, 0].tolist() == pytest.approx([-2 / DEVIATION, 0, 2 / DEVIATION])
    for name in ("alive", "agent_reward", "action_mask"):
        assert torch.equal(normal[name], OBS[name])


def test_statistics_of_agents_are_saved_and_those_of_ranks_are_combined() -> None:
    one, other, both = Normaliser(), Normaliser(), Normaliser()
    for normaliser in (one, both):
        normaliser.begin(SPACE, norm_obs=True)
        normaliser.update({"obs": OBS})
    later = {**OBS, "agent_state": SEEN + 2, "alive": torch.tensor([[0.0, 1.0]] * 3)}
    both.update({"obs": later})
    other.load_state_dict(both.state_dict())
    assert torch.equal(other.normalise_obs(OBS)["agent_state"], both.normalise_obs(OBS)["agent_state"])
    from lightning_ding.policy.base.running_statistics import moments_of_agents

    ranks = [[moments_of_agents(obs["agent_state"], obs)] for obs in (OBS, later)]
    rows = [torch.cat([moment.reshape(-1) for moment in found[0]]) for found in ranks]
    ((count, mean, _),) = _combined([_like(ranks[0], row) for row in rows])
    part = both.get_submodule("obs:agent_state")
    assert count.tolist() == part.count.tolist() == [[3], [5]]  # type: ignore[operator]
    assert torch.allclose(mean, part.mean)  # type: ignore[arg-type]


def test_rewards_of_agents_are_divided_as_that_of_the_team() -> None:
    normaliser = Normaliser()
    normaliser.begin(SPACE, norm_reward=True)
    reward = torch.tensor([1.0, 5.0, 9.0])
    numbers = torch.arange(3)
    batch = {"obs": OBS, "next_obs": OBS, "reward": reward, "env_id": numbers, "episode_id": numbers}
    normaliser.update(batch)
    normal = normaliser.normalise_batch(batch)
    scale = float(normal["reward"][0])
    assert scale != 1
    assert torch.allclose(normal["next_obs"]["agent_reward"], OBS["agent_reward"] * scale)
    assert torch.equal(normal["obs"]["agent_reward"], OBS["agent_reward"])


def test_wrapper_normalises_the_same_entries() -> None:
    env = NormaliseObservation(make_vector_env(CAMP, 2, env_kwargs={"leaves": {"b": 1}}, seed=0))
    env.reset(seed=0)
    obs, *_ = env.step(np.ones((2, 3), np.int64))
    assert set(env.statistics) == {"agent_state", "global_state"}
    assert not obs["agent_state"][:, 1].any()
    assert not obs["agent_state"][:, 2, 1:].any()
    assert obs["alive"].tolist() == [[1, 0, 1]] * 2
    assert obs["agent_state"][:, 0, :2].all()
    env.close()
