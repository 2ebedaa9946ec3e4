"""The command ``evaluate``: returns of a checkpoint's policy, and their statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.entry.cli import main
from lightning_ding.entry.evaluate import evaluate, resampled_means, statistics
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.entry.trained_runs import VECTOR_ENV, VECTOR_WRAPPER, train
from tests.policy.saved import write_checkpoint


@pytest.fixture
def ckpt(make_trainer: MakeTrainer, tmp_path: Path) -> Path:
    return train(make_trainer, tmp_path)


def test_statistics_of_returns_in_hand() -> None:
    found = statistics([8.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 100.0], seed=0)
    low, high = found.pop("mean_ci95")
    assert found == pytest.approx(
        {
            "episodes": 8,
            "mean": 123 / 8,
            "std": np.std([0, 1, 2, 3, 4, 5, 8, 100]),
            "median": 3.5,
            "min": 0.0,
            "max": 100.0,
            "iqm": (2 + 3 + 4 + 5) / 4,
        }
    )
    assert 0 < low < 4 < found["mean"] < 35 < high < 60


def test_interval_of_one_episode_is_its_return_and_of_many_is_the_normal_one() -> None:
    assert statistics([7.0])["mean_ci95"] == [7.0, 7.0]
    numbers = np.random.default_rng(0).normal(10.0, 2.0, size=400)
    low, high = statistics(numbers.tolist())["mean_ci95"]
    half = 1.96 * numbers.std() / 20
    assert (low, high) == pytest.approx((numbers.mean() - half, numbers.mean() + half), abs=0.02)
    assert not np.array_equal(resampled_means(numbers, 0), resampled_means(numbers, 1))


def test_command_prints_the_returns_of_the_policy_as_json(ckpt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(ckpt), "--episodes", "5", "--num_envs", "2", "--seed", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["env_id"], found["policy"], found["episodes"], found["seed"]) == ("CartPole-v1", "DQNPolicy", 5, 3)
    assert found["returns"] == [float(length) for length in found["lengths"]]
    assert found["mean"] == found["length_mean"] == np.mean(found["returns"])
    assert found["env_step"] == 16
    again = evaluate(ckpt, episodes=5, num_envs=5, seed=3)
    assert again == found
    assert evaluate(ckpt, episodes=5, seed=4)["returns"] != found["returns"]
    main(["evaluate", str(ckpt), "--episodes", "2"])
    assert capsys.readouterr().out.startswith(
        "DQNPolicy in CartPole-v1, 2 deterministic episodes, seed 0\nreturn: mean "
    )


def test_returns_are_those_of_a_loop_with_predict(ckpt: Path) -> None:
    policy = DQNPolicy.load_from_checkpoint(ckpt, weights_only=True)
    found = evaluate(ckpt, episodes=1, max_episode_steps=3)
    assert found["lengths"] == [3]
    env = gym.make("CartPole-v1")
    returns = []
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(policy.predict(obs))
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    assert evaluate(ckpt, episodes=20)["mean"] == pytest.approx(np.mean(returns), abs=3)


def test_stochastic_evaluation_explores_and_is_seeded(ckpt: Path) -> None:
    greedy, first, again = (evaluate(ckpt, 10, stochastic=one, seed=1)["returns"] for one in (False, True, True))
    assert first == again != greedy


def test_env_of_evaluations_is_played(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ckpt = train(make_trainer, tmp_path, eval_env_kwargs={"max_episode_steps": 4})
    assert evaluate(ckpt, 2)["lengths"] == [4, 4]


@pytest.mark.parametrize(
    "arguments",
    [
        {"env_id": VECTOR_ENV, "env_kwargs": {"max_episode_steps": 4}},
        {"env_kwargs": {"max_episode_steps": 4}, "wrappers": [VECTOR_WRAPPER]},
    ],
)
def test_native_vector_env_of_the_run_is_played(
    arguments: dict[str, Any], make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    ckpt = train(make_trainer, tmp_path, mode="native", **arguments)
    found = evaluate(ckpt, 3)
    assert (found["lengths"], found["mean"]) == ([4, 4, 4], 4.0)
    assert evaluate(ckpt, 3) == found


def test_another_env_than_the_native_vector_env_is_a_single_one(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrappers = ["flatten", VECTOR_WRAPPER]
    ckpt = train(make_trainer, tmp_path, env_id=VECTOR_ENV, mode="native", wrappers=wrappers)
    assert evaluate(ckpt, 3, env_id="CartPole-v1", max_episode_steps=4)["lengths"] == [4, 4, 4]  # not if native
    assert f"the env of --env_id is played without the vector wrappers of the run: ['{VECTOR_WRAPPER}']" in caplog.text


def test_policy_with_memory_is_evaluated(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    assert evaluate(train(make_trainer, tmp_path, "r2d2"), 2)["policy"] == "R2D2Policy"


def test_mistakes_are_one_line(ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.ckpt").write_bytes(ckpt.read_bytes()[:1000])
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    torch.save({"model": 1}, tmp_path / "other.ckpt")
    write_checkpoint(DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}}), tmp_path / "bare.ckpt")
    cases = [
        (["missing.ckpt"], "ckpt must be the path of a checkpoint, or zoo:NAME, got 'missing.ckpt'"),
        ([str(tmp_path / "torn.ckpt")], "path must be a checkpoint of a run, got"),
        ([str(tmp_path / "text.ckpt")], "path must be a checkpoint of a run, got"),
        ([str(tmp_path / "other.ckpt")], "path must be a checkpoint of a run, with weights and config, got"),
        ([str(tmp_path / "bare.ckpt")], "env_id must be an env, because the checkpoint names none"),
        ([str(ckpt), "--env_id", "CartPole-v9"], "env_id must be a registered gymnasium id"),
        ([str(ckpt), "--env_id", "Acrobot-v1"], "model.obs_shape is 4 in the config, but the env has 6"),
        ([str(ckpt), "--env_id", "Pendulum-v1"], "dqn needs a Discrete action space"),
        ([str(ckpt), "--episodes", "0"], "episodes must be >= 1, got 0"),
        ([str(ckpt), "--seed", "-1"], "seed must be >= 0, got -1"),
        ([str(ckpt), "--policy", "dqm"], "'dqm'"),
        ([str(ckpt), "--episode", "3"], "unrecognized arguments: --episode 3"),
    ]
    for options, message in cases:
        with pytest.raises(SystemExit) as end:
            main(["evaluate", *options])
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 2
        assert line.startswith("error: ")
        assert message in line, line


def test_exported_weights_are_evaluated_as_their_checkpoint(ckpt: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    main(["export", str(ckpt), "--format", "safetensors", "--output", str(file)])
    assert evaluate(file, 4) == evaluate(ckpt, 4)
