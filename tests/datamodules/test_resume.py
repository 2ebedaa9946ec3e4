from __future__ import annotations

import logging
import shutil
import types
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.checkpoints.folder import BUFFER_FILES
from lightning_ding.checkpoints.manifest import forget_files
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer

Config = dict[str, Any]


def first_half(make_trainer: MakeTrainer, small: Config, folder: Path) -> tuple[DQNPolicy, ReplayDataModule]:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, seed=3, max_env_step=200)
    make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder), BestCheckpoint(folder)]).fit(
        policy, datamodule
    )
    return policy, datamodule


class AtStart(Callback):
    """Notes the buffer that a run starts with, and whose state the exploration has."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.buffer = datamodule.buffer.state_dict()
        self.exploration = pl_module.rng.bit_generator.state


def go_on(
    make_trainer: MakeTrainer, small: Config, file: Path, max_env_step: int = 400, **arguments: Any
) -> tuple[AtStart, DQNPolicy, ReplayDataModule]:
    start, policy = AtStart(), DQNPolicy(small)
    made = {"num_envs": 2, "seed": 3, "max_env_step": max_env_step, **arguments}
    datamodule = ReplayDataModule("CartPole-v1", **made)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[start, RunCheckpoint(file.parent)])
    trainer.fit(policy, datamodule, ckpt_path=file)
    return start, policy, datamodule


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """Holds what cannot be read."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.engine = object()


class Levels(gym.Wrapper[Any, Any, Any, Any]):
    """A curriculum whose level is an attribute of the class, and an object that cannot be saved if ``is_lost``."""

    level = 0
    is_lost = False
    engine = types.SimpleNamespace(heat=0)

    def reset(self, **kwargs: Any) -> Any:
        Levels.level += 1
        self.engine.heat += self.is_lost
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return (obs, float(reward) * self.level, *rest)


class Grows(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps half a megabyte of each step."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.history: list[Any] = []

    def step(self, action: Any) -> Any:
        self.history.append(np.zeros(65536))
        return self.env.step(action)


class Fails(gym.Wrapper[Any, Any, Any, Any]):
    """Raises in the sixth step of every other episode."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps = self.episodes = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps, self.episodes = 0, self.episodes + 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 6 and self.episodes % 2:
            raise RuntimeError("the engine stalled")
        return self.env.step(action)


def weights(policy: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


def test_resumed_run_that_is_over_does_not_train(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    _, resumed, _ = go_on(make_trainer, small, tmp_path / "last.ckpt", max_env_step=200)
    assert (resumed.progress.env_step, resumed.progress.train_iter) == (200, 46)


def test_best_score_survives_so_that_a_worse_policy_does_not_replace_it(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    first_half(make_trainer, small, tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    best = BestCheckpoint(tmp_path)
    key = next(name for name in state["callbacks"] if name.startswith("BestCheckpoint"))
    best.load_state_dict(state["callbacks"][key])
    assert best.best_model_score > 1
    assert Path(best.best_model_path).is_file()


def test_checkpoints_hold_only_tensors_and_builtins(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    files = sorted(tmp_path.rglob("*.ckpt")) + sorted(tmp_path.rglob("*.pt"))
    assert [file.name for file in files] == ["best.ckpt", "run.ckpt", "last.ckpt", "collecting.pt", "rng.pt"]
    for file in files:
        torch.load(file, weights_only=True)


def test_only_the_newest_folder_of_the_ranks_is_kept(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["last-200"]


def test_run_resumed_without_replay_data_warns_and_continues(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_half(make_trainer, small, tmp_path)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        start, resumed, _ = go_on(make_trainer, small, tmp_path / "best.ckpt", max_env_step=300)
    assert "contains no replay data" in caplog.text
    assert start.buffer["counters"]["count"] == 0
    assert resumed.progress.env_step >= 300


def test_buffer_of_another_size_is_refused(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    other = deep_merge(small, {"other": {"replay_buffer": {"replay_buffer_size": 300}}})
    with pytest.raises(ValueError, match="replay_buffer_size must be 500, as in the saved state, got 300"):
        go_on(make_trainer, other, tmp_path / "last.ckpt")


def test_checkpoint_of_another_version_is_refused(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state["ReplayDataModule"]["schema"] = 2
    torch.save(state, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match=r"must have schema 4, got 2: it was written by another version"):
        go_on(make_trainer, small, tmp_path / "old.ckpt")


def test_run_resumed_from_ranks_without_a_buffer_starts_with_an_empty_one(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, _ = first_half(make_trainer, small, tmp_path)
    forget_files(tmp_path / "last-200", BUFFER_FILES)
    start, resumed, _ = go_on(make_trainer, small, tmp_path / "last.ckpt", max_env_step=300)
    assert "contains no replay data" in caplog.text
    assert start.buffer["counters"]["count"] == 0
    assert start.exploration == policy.rng.bit_generator.state
    assert resumed.progress.env_step >= 300


def test_data_of_another_number_of_ranks_is_shared_out(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_half(make_trainer, small, tmp_path)
    shutil.copytree(tmp_path / "last-200" / "rank_0", tmp_path / "last-200" / "rank_1")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state["ReplayDataModule"]["world_size"] = 2
    torch.save(state, tmp_path / "two.ckpt")
    start, resumed, datamodule = go_on(make_trainer, small, tmp_path / "two.ckpt", max_env_step=300)
    assert "was written by 2 ranks and is resumed by 1" in caplog.text
    assert start.buffer["counters"]["count"] == 400
    assert resumed.progress.env_step == 304  # there is no second warm-up: 13 rounds of 8
    tensors = datamodule.buffer.state_dict()["tensors"]  # type: ignore[union-attr]
    env_of = dict(zip(tensors["column/episode_id"].tolist(), tensors["column/env_id"].tolist(), strict=True))
    assert sorted(set(env_of.values())) == [0, 1, 2, 3]
    for episode, env in env_of.items():  # no number of an episode is given out twice
        assert set(tensors["column/env_id"][tensors["column/episode_id"] == episode].tolist()) == {env}


def test_run_stopped_within_an_epoch_resumes_with_the_rest_of_it(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def fit(name: str, rounds: int | None, file: Path | None = None) -> tuple[DQNPolicy, Evaluations]:
        policy, evaluations = DQNPolicy(small), Evaluations(stop_behind=rounds)
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, rounds_per_epoch=10)
        callbacks = [evaluations, RunCheckpoint(tmp_path / name)]
        trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks, max_epochs=5)
        trainer.fit(policy, datamodule, ckpt_path=file)
        return policy, evaluations

    torch.manual_seed(0)
    straight, all_of_them = fit("straight", None)
    torch.manual_seed(0)
    stopped, _ = fit("stopped", 25)
    assert stopped.progress.env_step == 16 + 25 * 8
    resumed, rest = fit("stopped", None, tmp_path / "stopped" / "last.ckpt")
    assert [step for step, _ in all_of_them.seen] == [96, 176, 256, 336, 416]
    assert rest.seen == all_of_them.seen[2:]
    assert torch.equal(weights(resumed), weights(straight))


def levels(
    make_trainer: MakeTrainer, small: Config, folder: Path, rounds: int | None, file: Path | None = None
) -> DQNPolicy:
    """Run 25 rounds, or stop after some, without evaluations, which would raise the level too."""
    Levels.level, Levels.engine.heat = 0, 0  # as in a new process
    torch.manual_seed(0)
    policy, callbacks = DQNPolicy(small), [RunCheckpoint(folder), Evaluations(stop_behind=rounds)]
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, wrappers=[Levels], rounds_per_epoch=25)
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=callbacks, max_epochs=1)
    trainer.fit(policy, datamodule, ckpt_path=file)
    return policy


def test_level_on_the_class_of_an_env_continues(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight = levels(make_trainer, small, tmp_path / "straight", None)
    level = Levels.level
    levels(make_trainer, small, tmp_path / "stopped", 15)
    resumed = levels(make_trainer, small, tmp_path / "stopped", None, tmp_path / "stopped" / "last.ckpt")
    assert torch.equal(weights(resumed), weights(straight))
    assert Levels.level == level > 10
    assert "continue differently" not in caplog.text


def test_object_on_the_class_of_an_env_that_cannot_be_saved_is_reported_at_the_start_and_after_resuming(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Levels, "is_lost", True)
    levels(make_trainer, small, tmp_path, 10)
    name = "tests.datamodules.test_resume.Levels.engine is a types.SimpleNamespace"
    start = "the checkpoints of this run will not contain everything that its envs depend on"
    assert caplog.text.count(start) == caplog.text.count(name) == 1
    caplog.clear()
    levels(make_trainer, small, tmp_path, 2, tmp_path / "last.ckpt")
    resumed = "this run may continue differently, because the checkpoint does not contain everything"
    assert [caplog.text.count(text) for text in (resumed, start, name)] == [1, 1, 2]


def test_envs_that_fill_most_of_a_checkpoint_are_reported_once(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, wrappers=[Grows], max_env_step=64)
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=[RunCheckpoint(tmp_path)])
    trainer.fit(DQNPolicy(small), datamodule)
    (line,) = [text for text in caplog.messages if "most of a checkpoint" in text]
    assert "the state of the envs: 34 of 34 MB, of which Grows.history is 34 MB" in line


class Evaluations(Callback):
    """Record when evaluations take place and their results, and stop a run after some rounds."""

    def __init__(self, stop_behind: int | None) -> None:
        self.seen: list[tuple[int, float]] = []
        self.stop_behind = stop_behind
        self.rounds = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rounds += 1
        trainer.should_stop |= self.rounds == self.stop_behind

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.seen.append((pl_module.progress.env_step, float(trainer.callback_metrics["eval/return_mean"])))


def test_env_that_cannot_give_its_state_begins_a_new_episode_and_says_so(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fit(budget: int, file: Path | None = None) -> tuple[DQNPolicy, Any, AtStart]:
        torch.manual_seed(0)
        policy, start = DQNPolicy(small), AtStart()
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, wrappers=[Opaque], max_env_step=budget)
        trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(tmp_path), start])
        trainer.fit(policy, datamodule, ckpt_path=file)
        return policy, datamodule, start

    first, before, _ = fit(200)
    assert caplog.text.count("the checkpoints of this run will not contain the state of its envs") == 1
    assert caplog.text.count("CartPole-v1: Opaque.engine is a builtins.object") == 1
    caplog.clear()
    exploration, begun = first.rng.bit_generator.state, before.collector.next_episode_id
    kept = before.buffer.state_dict()
    _, after, start = fit(400, tmp_path / "last.ckpt")
    assert caplog.text.count("the envs start new episodes, because their state is not in the checkpoint") == 1
    assert caplog.text.count("CartPole-v1: Opaque.engine is a builtins.object") == 2
    assert start.exploration == exploration
    for name, tensor in kept["tensors"].items():
        assert torch.equal(start.buffer["tensors"][name], tensor), name
    tensors = after.buffer.state_dict()["tensors"]
    episodes = tensors["column/episode_id"]
    assert set(episodes[200:202].tolist()) == {begun, begun + 1}
    assert not set(episodes[200:].tolist()) & set(episodes[:200].tolist())


def test_run_resumed_with_a_different_number_of_envs_starts_new_episodes(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_half(make_trainer, small, tmp_path)
    start, resumed, _ = go_on(make_trainer, small, tmp_path / "last.ckpt", num_envs=4)
    assert "CartPole-v1: the number of envs must be as saved, 2 in 0 vector wrappers, got 4" in caplog.text
    assert start.buffer["counters"]["count"] == 200
    assert resumed.progress.env_step == 400


def test_transitions_of_an_episode_that_a_fault_broke_off_leave_the_buffer(
    make_trainer: MakeTrainer, small: Config
) -> None:
    config = deep_merge(small, {"collect": {"collector": {"env_fault": "drop"}, "n_sample": 7}})
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, wrappers=[Fails], max_env_step=200)
    make_trainer(limit_val_batches=0).fit(DQNPolicy(config), datamodule)
    collector, buffer = cast(Any, datamodule.collector), cast(Any, datamodule.buffer)
    assert collector.dropped_episode >= 4
    drawn = buffer.sample(buffer.count())
    tensors = buffer.state_dict()["tensors"]
    lengths = torch.bincount(tensors["column/episode_id"])
    broken = {episode for episode in range(len(lengths)) if lengths[episode] == 5} - set(collector._episode_id.tolist())
    assert len(broken) == collector.dropped_episode
    assert not broken & set(drawn["episode_id"].tolist())
    assert buffer.count() == len(tensors["column/episode_id"]) - 5 * len(broken)


def test_checkpoint_is_evaluated_without_its_replay_data(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy, _ = first_half(make_trainer, small, tmp_path)
    data = ReplayDataModule("CartPole-v1", seed=3)
    file = tmp_path / "last.ckpt"
    (from_file,) = make_trainer().validate(DQNPolicy(small), data, ckpt_path=file, verbose=False)
    (in_memory,) = make_trainer().validate(policy, data, verbose=False)
    assert from_file == in_memory


def test_policy_loads_from_a_checkpoint_alone(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy, _ = first_half(make_trainer, small, tmp_path)
    loaded = DQNPolicy.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    obs = torch.randn(50, 4)
    assert torch.equal(loaded(obs), policy(obs))
    assert loaded.config == policy.config
