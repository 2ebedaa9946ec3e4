"""A stock Trainer with DDP on two processes: what is the same on both ranks, and what is not."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.datamodules.two_ranks_script import CONFIG
from tests.processes import run_ranks_of_lightning

Reports = list[dict[str, Any]]

SCRIPT = Path(__file__).with_name("two_ranks_script.py")
SEED = 3  # as in the script
N_EPISODE = 5


def train_on_two_ranks(folder: Path, max_env_step: int, *checkpoint: str) -> Reports:
    """Run the script to its end, and return what each rank wrote."""
    run_ranks_of_lightning(SCRIPT, folder, max_env_step, *checkpoint)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return train_on_two_ranks(tmp_path_factory.mktemp("first_run"), 400)


@pytest.fixture(scope="module")
def second_run(first_run: Reports, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return train_on_two_ranks(tmp_path_factory.mktemp("second_run"), 560, checkpoint_of(first_run))


def checkpoint_of(reports: Reports) -> str:
    (path,) = reports[0]["last_model_path"]
    return str(path)


def test_two_ranks_end_with_bit_identical_weights(first_run: Reports) -> None:
    one, other = first_run
    assert len(one["weights"]) == 20  # 10 tensors of the network, and of its target
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


def test_two_ranks_see_different_data(first_run: Reports) -> None:
    one, other = (report["buffer"]["frames/obs:row"] for report in first_run)
    assert len(one) == len(other) == 200
    assert not {tuple(row) for row in one.tolist()} & {tuple(row) for row in other.tolist()}


def test_env_steps_are_the_sum_over_ranks_and_end_the_run(first_run: Reports) -> None:
    # 16 random steps and 23 rounds of 8 on each rank: 2 * (16 + 23 * 8) = 400
    assert [report["env_step_of_rank"] for report in first_run] == [200, 200]
    assert [report["progress"]["env_step"] for report in first_run] == [400, 400]
    assert [report["progress"]["sample"] for report in first_run] == [400, 400]


def test_updates_are_counted_once_however_many_ranks_make_them(first_run: Reports) -> None:
    assert [report["progress"]["train_iter"] for report in first_run] == [46, 46]  # 23 rounds of 2
    assert [report["global_step"] for report in first_run] == [46, 46]


def test_episodes_and_their_metrics_are_those_of_all_ranks(first_run: Reports) -> None:
    one, other = first_run
    # every step of CartPole gives 1; the steps of all finished episodes, of both ranks, make up the mean
    finished = sum(
        int((buffer["column/terminated"] | buffer["column/truncated"]).sum())
        for buffer in (one["buffer"], other["buffer"])
    )
    assert one["progress"]["episode"] == other["progress"]["episode"] == finished
    for name in ("collect/return_mean", "collect/length_mean", "learn/total_loss", "learn/q_value"):
        assert one["metrics"][name] == other["metrics"][name]


def test_evaluation_on_two_ranks_gives_what_one_rank_gets_from_the_same_checkpoint(
    first_run: Reports, make_trainer: MakeTrainer
) -> None:
    datamodule = ReplayDataModule("CartPole-v1", seed=SEED, n_evaluator_episode=N_EPISODE)
    policy = DQNPolicy.load_from_checkpoint(checkpoint_of(first_run), weights_only=True)
    (alone,) = make_trainer().validate(policy, datamodule, verbose=False)
    for report in first_run:
        for name in ("return_mean", "return_std", "return_min", "return_max", "length_mean"):
            assert report["metrics"][f"eval/{name}"] == alone[f"eval/{name}"], name


def test_numbers_of_the_infos_are_means_over_the_episodes_of_all_ranks(first_run: Reports) -> None:
    for report in first_run:
        for stage in ("collect", "eval"):
            assert report["metrics"][f"{stage}/count"] == report["metrics"][f"{stage}/length_mean"]


def test_record_has_the_episodes_of_all_ranks_once(first_run: Reports, second_run: Reports) -> None:
    for reports in (first_run, second_run):
        assert reports[1]["episodes"] == ""  # rank zero writes
        with Path(reports[0]["episodes"]).open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == reports[0]["progress"]["episode"]
        assert all(float(row["return"]) == float(row["length"]) == float(row["count"]) for row in rows)
        steps = [int(row["env_step"]) for row in rows]
        assert max(steps) <= reports[0]["progress"]["env_step"]
        assert all(step % 4 == 0 for step in steps)  # two ranks of two envs


def test_every_rank_saves_its_data_next_to_the_checkpoint_file(first_run: Reports) -> None:
    file = Path(checkpoint_of(first_run))
    state = torch.load(file, weights_only=True)["ReplayDataModule"]
    folders = sorted((file.parent / state["rank_folder"]).glob("rank_*"))
    assert [folder.name for folder in folders] == ["rank_0", "rank_1"]
    for folder in folders:
        names = sorted(content.name for content in folder.iterdir())
        own = ["own_state.pt"] if folder.name != "rank_0" else []  # that of rank zero is in the file
        assert names == ["buffer.safetensors", "collecting.pt", *own, "rng.pt"]


def test_run_on_two_ranks_continues_with_each_ranks_own_data(first_run: Reports, second_run: Reports) -> None:
    for before, after in zip(first_run, second_run, strict=True):
        assert after["progress"]["env_step"] == 560
        assert after["progress"]["train_iter"] == after["global_step"] == 46 + 20  # 10 rounds of 16: no second warm-up
        assert torch.equal(after["buffer"]["frames/obs:row"][:200], before["buffer"]["frames/obs:row"])


def test_resumed_ranks_end_with_bit_identical_weights(first_run: Reports, second_run: Reports) -> None:
    one, other = (report["weights"] for report in second_run)
    name = "model.encoder.layers.0.weight"
    assert not torch.equal(one[name], first_run[0]["weights"][name])
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def fit(make_trainer: MakeTrainer, folder: Path, budget: int, file: str | None = None) -> tuple[DQNPolicy, Any]:
    policy = DQNPolicy(CONFIG)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=SEED, max_env_step=budget)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder)])
    trainer.fit(policy, datamodule, ckpt_path=file)
    assert datamodule.buffer is not None
    return policy, datamodule.buffer.state_dict()["tensors"]


def test_data_are_shared_out_to_more_ranks_and_merged_on_fewer(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, first = fit(make_trainer, tmp_path / "one", 200)
    on_two = train_on_two_ranks(tmp_path, 360, str(tmp_path / "one" / "last.ckpt"))
    obs = [report["buffer"]["frames/obs:row"] for report in on_two]
    for report, rows in zip(on_two, obs, strict=True):
        assert len(rows) == 200 + 80  # 160 steps by two ranks
        assert torch.equal(rows[:200], first["frames/obs:row"])
        assert report["progress"]["env_step"] == 360
        assert report["progress"]["train_iter"] == policy.progress.train_iter + 20  # 10 rounds of 2
    own = [{tuple(row) for row in rows[200:].tolist()} for rows in obs]
    assert not own[0] & own[1]
    for name, tensor in on_two[0]["weights"].items():
        assert torch.equal(tensor, on_two[1]["weights"][name]), name

    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        last, merged = fit(make_trainer, tmp_path / "again", 440, checkpoint_of(on_two))
    assert "was written by 2 ranks and is resumed by 1" in caplog.text
    assert last.progress.env_step == 440
    assert last.progress.train_iter == policy.progress.train_iter + 20 + 20
    rows = {tuple(row) for row in merged["frames/obs:row"].tolist()}
    assert len(merged["frames/obs:row"]) == 500  # of 2 * 280 + 80 the newest
    assert own[0] | own[1] <= rows
