"""Runs of policies with reward models: exact resume, two ranks, logged metrics, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_ding.callbacks import MetricsLogger, RunCheckpoint
from lightning_ding.utils import private_api
from tests.algorithms.exact_resume_script import Series
from tests.algorithms.table import make_datamodule, make_policy, state_of
from tests.processes import run_ranks_of_lightning
from tests.reward_model.cases import CASES, fit, make

EVERY = pytest.mark.parametrize("case", CASES)


class Rewards(Callback):
    """Notes the rewards of each rollout, or those of the newest minibatch, as they are stored."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        rows = batch if isinstance(batch, dict) else trainer.datamodule.buffer.transitions()
        self.stored.append(rows["reward"].clone())
        self.batch = batch

    def on_train_batch_end(self, *_: Any) -> None:
        if isinstance(self.batch, dict):
            assert torch.equal(self.batch["reward"], self.stored[-1])


@EVERY
def test_resumed_run_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    ends = []
    for way in ("straight", "resumed"):
        torch.manual_seed(0)
        policy, datamodule = make(case, tmp_path)
        if way == "resumed":
            fit(policy, datamodule, tmp_path, 2, callbacks=[RunCheckpoint(tmp_path)], enable_checkpointing=True)
            torch.manual_seed(999)
            policy, datamodule = make(case, tmp_path)
            fit(policy, datamodule, tmp_path, 4, ckpt_path=str(tmp_path / "last.ckpt"))
        else:
            fit(policy, datamodule, tmp_path, 4)
        ends.append(state_of(policy, datamodule) | {"rewards": str(policy.learner.rewards.state())})
    for part, value in ends[0].items():
        assert ends[1][part] == value, part
    assert any(name.startswith("reward_model.") for name in ends[0]["tensors"])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two_ranks")
    run_ranks_of_lightning("-m", "tests.reward_model.two_ranks_script", folder, timeout=280)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@EVERY
def test_two_ranks_end_with_the_same_bits(case: str, reports: list[dict[str, Any]]) -> None:
    one, other = (report[case] for report in reports)
    assert set(one["weights"]) == set(other["weights"])
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


def test_statistics_are_of_the_steps_of_both_ranks(reports: list[dict[str, Any]]) -> None:
    assert [report["dqn_rnd"]["seen"] for report in reports] == [float(reports[0]["dqn_rnd"]["env_step"])] * 2


@EVERY
def test_stored_rewards_are_those_of_the_env(case: str, tmp_path: Path) -> None:
    policy, datamodule = make(case, tmp_path)
    rewards = Rewards()
    fit(policy, datamodule, tmp_path, 1, callbacks=[rewards])
    stored = torch.cat(rewards.stored)
    if case == "dqn_pwil":  # which stores its rewards
        assert stored.unique().numel() > 10
    elif CASES[case][0] == "sac":
        assert (stored < 0).all()  # of Pendulum
    else:
        assert set(stored.tolist()) == {1.0}  # of CartPole


@EVERY
def test_loss_and_scores_are_logged(case: str, tmp_path: Path) -> None:
    policy, datamodule = make(case, tmp_path)
    series = Series()
    fit(policy, datamodule, tmp_path, 1, callbacks=[MetricsLogger(log_every_n_rounds=2)], logger=series)
    logged = {name for _, metrics in series.written for name in metrics}
    learned = set() if "pwil" in case else {"learn/reward_model_loss"}
    assert {*learned, "learn/reward_model_score"} <= logged


@pytest.mark.parametrize("case", ["dqn_rnd", "ppo_gail", "sac_icm"])
def test_compiled_updates_give_the_numbers_of_eager_ones(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_compiled(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        return lambda tensors: graph(*tensors)

    monkeypatch.setattr(private_api, "_compile", not_compiled)  # tests/policy/base/test_compiled.py compiles graphs
    weights = []
    for compiles in (False, True):
        torch.manual_seed(0)
        policy, datamodule = make(case, tmp_path, compile=compiles)
        fit(policy, datamodule, tmp_path, 1)
        weights.append({name: tensor for name, tensor in policy.state_dict().items() if tensor.is_floating_point()})
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_run_without_a_reward_model_saves_nothing_of_one(tmp_path: Path) -> None:
    policy, datamodule = make_policy("dqn"), make_datamodule("dqn", rounds_per_epoch=4)
    fit(policy, datamodule, tmp_path, 1, callbacks=[RunCheckpoint(tmp_path)], enable_checkpointing=True)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert not [name for name in state["state_dict"] if "reward_model" in name]
    assert len(state["optimizer_states"]) == 1
    assert "rewards" not in torch.load(next(tmp_path.rglob("collecting*")), weights_only=True)
