"""The command ``collect``: the data sets that it writes are those that the policy played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, load_dataset
from lightning_ding.entry.cli import main
from lightning_ding.entry.collect import collect
from lightning_ding.policy import DQNPolicy, SACPolicy
from lightning_ding.policy.base.recurrent import EnvStates
from lightning_ding.utils.protocols import return_text
from tests.algorithms.table import make_policy
from tests.conftest import MakeTrainer
from tests.entry.trained_runs import VECTOR_ENV, train
from tests.toys.bandits import TargetEnv

SIZES = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
CONFIG: dict[str, Any] = {"model": SIZES, "learn": {"batch_size": 8}, "random_collect_size": 16}


@pytest.fixture
def ckpt(make_trainer: MakeTrainer, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    datamodule = ReplayDataModule("Pendulum-v1", num_envs=2, max_env_step=32)
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(SACPolicy(CONFIG), datamodule)
    return tmp_path / "checkpoints" / "last.ckpt"


def test_command_writes_the_episodes_of_the_policy(
    ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demos.npz"
    main(["collect", str(ckpt), "--out", str(out), "--episodes", "3", "--seed", "1"])
    data = load_dataset(out)
    assert data.bounds().tolist() == [0, 200, 400, 600]
    assert data.columns["truncated"].nonzero()[0].tolist() == [199, 399, 599]
    assert data.action_space == spaces.Box(-2, 2, (1,))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"written: {out}, 3 episodes, 600 transitions"
    assert shown[1].startswith(f"mean return: {return_text(data.returns().mean())},")


def test_greedy_actions_are_those_of_the_eval_mode(ckpt: Path, tmp_path: Path) -> None:
    policy = SACPolicy.load_from_checkpoint(ckpt, weights_only=True)
    for greedy in (True, False):
        data = collect(ckpt, str(tmp_path / f"{greedy}.npz"), n_episode=1, greedy=greedy)
        action = policy.eval_mode.forward(torch.from_numpy(data.columns["obs"]))["action"]
        is_equal = np.allclose(data.columns["action"], action.numpy(), atol=1e-5)
        assert is_equal == greedy


def test_each_greedy_episode_starts_without_memory_of_the_one_before(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy("r2d2", random_collect_size=0)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=16)
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(policy, datamodule)
    read, firsts = EnvStates.read, list[bool]()

    def note(states: EnvStates, *args: Any) -> Any:
        state, is_first = read(states, *args)
        firsts.extend(is_first.tolist())
        assert not state[is_first].any()
        return state, is_first

    monkeypatch.setattr(EnvStates, "read", note)
    data = collect(tmp_path / "checkpoints" / "last.ckpt", str(tmp_path / "x.npz"), 3, greedy=True, num_envs=1)
    assert np.flatnonzero(firsts).tolist() == data.bounds()[:-1].tolist()


def test_episodes_of_a_native_vector_env_are_written(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ckpt = train(make_trainer, tmp_path, env_id=VECTOR_ENV, mode="native", env_kwargs={"max_episode_steps": 4})
    data = collect(ckpt, str(tmp_path / "x.npz"), n_episode=3, num_envs=2)
    assert data.bounds().tolist() == [0, 4, 8, 12]
    assert data.columns["truncated"].nonzero()[0].tolist() == [3, 7, 11]
    assert load_dataset(tmp_path / "x.npz").observation_space.shape == (4,)


def test_policy_that_acts_on_rewards_is_refused(ckpt: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"policy must be one that acts on observations alone.*got 'DTPolicy'"):
        collect(ckpt, str(tmp_path / "x.npz"), 1, policy="dt", greedy=True)


def test_another_env_can_be_played_and_another_seed_gives_other_episodes(ckpt: Path, tmp_path: Path) -> None:
    found = [
        collect(ckpt, str(tmp_path / f"{run}.npz"), 2, seed=seed, policy="sac", env_id="Pendulum-v1").columns["obs"]
        for run, seed in enumerate((0, 0, 1))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_random_actions_need_no_checkpoint_and_are_counted_as_by_the_env(tmp_path: Path) -> None:
    data = collect(None, str(tmp_path / "random.npz"), 20, random=True, env_id="tests.entry.test_collect.FromFive")
    assert set(data.columns["action"].tolist()) == {5, 6}
    assert load_dataset(tmp_path / "random.npz").action_space == spaces.Discrete(2, start=5)


def test_noise_is_the_share_of_random_actions_of_each_group_of_episodes(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    datamodule = ReplayDataModule("tests.entry.test_collect.FromFive", num_envs=2, max_env_step=32)
    config = {"model": {"encoder_hidden_size_list": [8]}, "learn": {"batch_size": 8}, "random_collect_size": 16}
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(policy := DQNPolicy(config), datamodule)
    ckpt, out = tmp_path / "checkpoints" / "last.ckpt", str(tmp_path / "ranked.npz")
    data = collect(ckpt, out, 200, greedy=True, noise=[1.0, 0.5, 0.0])
    assert len(data.returns()) == 600
    greedy = policy.eval_mode.forward(torch.from_numpy(data.columns["obs"]))["action"].numpy()
    bounds = data.bounds()
    shares = [(greedy == data.columns["action"])[bounds[start] : bounds[start + 200]].mean() for start in (0, 200, 400)]
    assert shares[2] == 1.0
    assert shares[:2] == pytest.approx([0.5, 0.75], abs=0.12)  # half of the random actions are the greedy ones
    for noise, message in (([0.0, 1.0], "noise must be falling shares"), ([2.0], r"in \[0, 1\], such as 1 0.5 0")):
        with pytest.raises(ValueError, match=message):
            collect(ckpt, str(tmp_path / "other.npz"), 1, noise=noise)
    with pytest.raises(ValueError, match="noise must be left out with random actions"):
        collect(None, str(tmp_path / "other.npz"), 1, random=True, env_id="CartPole-v1", noise=[1.0])


class FromFive(TargetEnv):
    """An env whose actions are 5 and 6."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2, start=5)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        return super().step(np.array([action - 5.0], dtype=np.float32))


def test_data_of_a_discrete_policy_train_a_policy_offline(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    config = {"model": {"encoder_hidden_size_list": [8]}, "learn": {"batch_size": 8}, "random_collect_size": 16}
    datamodule = ReplayDataModule("tests.entry.test_collect.FromFive", num_envs=2, max_env_step=32)
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(DQNPolicy(config), datamodule)
    collect(tmp_path / "checkpoints" / "last.ckpt", str(tmp_path / "steps.npz"), 30)
    offline = OfflineDataModule(str(tmp_path / "steps.npz"), max_train_iter=5)
    make_trainer().fit(policy := DQNPolicy(config), offline)
    assert policy.config.model.action_start == 5


def test_exploration_is_that_of_the_end_of_the_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    network = {"model": {"encoder_hidden_size_list": [8]}, "learn": {"batch_size": 8}, "random_collect_size": 16}
    datamodule = ReplayDataModule("tests.entry.test_collect.FromFive", num_envs=2, max_env_step=32)
    policy = DQNPolicy({**network, "other": {"eps": {"start": 1.0, "end": 0.0}}})
    make_trainer(enable_checkpointing=True, limit_val_batches=0).fit(policy, datamodule)
    ckpt = tmp_path / "checkpoints" / "last.ckpt"
    found = [collect(ckpt, str(tmp_path / f"{greedy}.npz"), 10, greedy=greedy) for greedy in (False, True)]
    np.testing.assert_array_equal(found[0].columns["action"], found[1].columns["action"])


def test_policy_of_a_data_set_explores_as_after_a_long_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    steps = str(tmp_path / "first.npz")
    collect(None, steps, 5, random=True, env_id="CartPole-v1")
    policy = DQNPolicy({"learn": {"batch_size": 8}, "other": {"eps": {"start": 1.0, "end": 0.0}}})
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0)
    trainer.fit(policy, OfflineDataModule(steps, "CartPole-v1", max_train_iter=5))
    ckpt = next(tmp_path.rglob("last.ckpt"))
    found = [collect(ckpt, str(tmp_path / f"{greedy}.npz"), 5, greedy=greedy) for greedy in (False, True)]
    np.testing.assert_array_equal(found[0].columns["action"], found[1].columns["action"])


def test_minari_data_set_is_written(ckpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    data = collect(ckpt, "pendulum/sac-v0", 2)
    written = minari.load_dataset("pendulum/sac-v0")
    assert written.env_spec.id == "Pendulum-v1"
    np.testing.assert_allclose(load_dataset("pendulum/sac-v0").columns["next_obs"], data.columns["next_obs"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "x.npz"], "ckpt must be a checkpoint"),
        (["missing.ckpt", "--out", "x.npz"], "ckpt must be the path of a checkpoint, or zoo:NAME, got 'missing.ckpt'"),
        (["--random", "--out", "x.npz"], "env_id must be an env"),
        (["--random", "--env_id", "CartPole-v1", "--out", "x.csv"], "out must be a path that ends in .npz"),
        (["--random", "--env_id", "CartPole-v1", "--out", "x.npz", "--episodes", "0"], "n_episode must be >= 1"),
        (["--random", "--greedy", "--env_id", "CartPole-v1", "--out", "x.npz"], "greedy must be False"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["collect", *options])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(f"error: {message}")
