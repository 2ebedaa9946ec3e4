"""Checkpoints of a learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.utils.progress import Progress
from lightning_ding.worker.learner import engine as checkpoint
from tests.worker.learner.toy_policy import FakePolicy, assert_equal, batch_of, learner_of, policy_of, saved_in, weights


def test_checkpoint_needs_no_hook(tmp_path: Path) -> None:
    file = learner_of(policy_of(), exp_name=str(tmp_path)).save_checkpoint("ckpt_best.pth.tar")

    assert file == tmp_path / "ckpt" / "ckpt_best.pth.tar"
    assert file.is_file()


def test_checkpoint_is_named_after_ckpt_name_once(tmp_path: Path) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path))
    learner.ckpt_name = "mine.pth.tar"

    assert [learner.save_checkpoint().name for _ in range(2)] == ["mine.pth.tar", "iteration_0.pth.tar"]


def test_checkpoint_of_a_named_learner_has_a_separate_folder(tmp_path: Path) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path), instance_name="second")

    assert learner.save_checkpoint("x").parent == tmp_path / "ckpt_second"


def test_checkpoint_is_written_by_the_first_rank_alone(tmp_path: Path, two_ranks: list[dict[str, Any]]) -> None:
    hook = {"log_reduce_after_iter": False}
    learner_of(policy_of(), hook=hook, exp_name=str(tmp_path / "second"), dist_info=(1, 2)).save_checkpoint()

    assert not (tmp_path / "second").exists()
    assert [report["saves"] for report in two_ranks] == [True, False]


def test_checkpoint_brings_back_all_that_further_updates_depend_on(tmp_path: Path) -> None:
    straight, first, second = policy_of(), policy_of(), policy_of()
    for policy, seeds in ((straight, range(10)), (first, range(5))):
        learner = learner_of(policy, exp_name=str(tmp_path))
        for seed in seeds:
            learner.train(batch_of(seed), envstep=seed * 10)
    first.progress.episode, first.progress.sample = 6, 40
    file = learner.save_checkpoint()
    learner = learner_of(second)
    learner.load_checkpoint(file)
    assert second.progress.state_dict() == {"train_iter": 5, "env_step": 40, "episode": 6, "sample": 40}
    for seed in range(5, 10):
        learner.train(batch_of(seed))

    # weights, Adam's moments, the target network, and the counter that times its update
    assert_equal(weights(straight), weights(second))


def test_checkpoint_of_fewer_counters_leaves_the_others(tmp_path: Path) -> None:
    policy = FakePolicy(progress=Progress(train_iter=1, env_step=2, episode=3))
    torch.save({"weight": torch.ones(1), "last_iter": 9}, tmp_path / "file")
    learner = learner_of(policy)
    learner.load_checkpoint(tmp_path / "file")

    assert (learner.train_iter, learner.collector_envstep) == (9, 2)
    assert policy.loaded is not None
    assert policy.loaded.keys() == {"weight"}


def test_checkpoint_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path))
    file = learner.save_checkpoint("same")
    before = file.read_bytes()

    def half(state: Any, target: Path) -> None:
        target.write_bytes(before[:100])
        raise OSError("disk full")

    monkeypatch.setattr("lightning_ding.worker.learner.engine.torch.save", half)
    learner.train(batch_of(1))
    with pytest.raises(OSError, match="disk full"):
        learner.save_checkpoint("same")

    assert file.read_bytes() == before
    assert saved_in(file.parent) == ["same"]


def test_checkpoint_holds_tensors_and_builtins_only(tmp_path: Path) -> None:
    state = {"a": np.arange(3), "b": [np.float64(0.5), (1, None)], "c": {"d": "text", "e": torch.ones(2)}}
    checkpoint.write_checkpoint(tmp_path / "file", state)
    read = checkpoint.read_checkpoint(tmp_path / "file")

    assert read["a"].tolist() == [0, 1, 2]
    assert read["b"] == [0.5, (1, None)]
    assert (read["c"]["d"], read["c"]["e"].tolist()) == ("text", [1.0, 1.0])


def test_checkpoint_refuses_types_that_could_not_be_read_back(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the state\['a'\]\[1\] must be a tensor or a builtin to be saved, got"):
        checkpoint.write_checkpoint(tmp_path / "folder" / "file", {"a": [1, tmp_path]})

    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_is_no_state_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "file")
    with pytest.raises(TypeError, match="must hold a dict, the state of a learner, got Tensor"):
        checkpoint.read_checkpoint(tmp_path / "file")
