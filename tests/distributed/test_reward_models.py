"""Reward models of policies that learn from replay, in distributed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.config import deep_merge
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.policy.base.rewards import RewardLearner
from tests.distributed.coordinator.coordinating import Run, both, config as scripted, transitions
from tests.distributed.test_on_policy import Learner, config, coordinating
from tests.reward_model.cases import CASES, FROM_DATA, write_expert

RND = {"type": "rnd", "hidden_size_list": [8], "batch_size": 8}
DQN = {
    "type": "dqn",
    "nstep": 1,
    "random_collect_size": 16,
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "reward_model": RND,
}


def collected(run: Run, learner: Any) -> list[float] | None:
    """Return the rewards of the transitions since the last round, with which the learner gets the next one."""
    answer = learner.get()
    assert answer["data"] is not None
    tensors = run.store.get(answer["data"]).tensors
    return tensors["collected"]["reward"].tolist() if "collected" in tensors else None


def with_rnd(folder: Path, **policy: Any) -> dict[str, Any]:
    return scripted(folder, {"nstep": 1, "reward_model": RND, **policy})


def test_a_round_has_the_transitions_since_the_last_one(tmp_path: Path) -> None:
    run = Run(with_rnd(tmp_path))
    learner, collector = both(run)
    collector.send(transitions(4, 0))
    collector.send(transitions(4, 4))
    assert collected(run, learner) == [*range(8)]
    assert collected(run, learner) is None
    collector.send(transitions(4, 8))
    assert collected(run, learner) == [*range(8, 12)]


def test_without_a_reward_model_that_needs_them_a_round_has_minibatches_only(tmp_path: Path) -> None:
    expert = write_expert(tmp_path, is_continuous=False)
    for number, model in enumerate([{"type": None}, {"type": "red", "data_path": expert}]):
        run = Run(scripted(tmp_path / str(number), {"nstep": 1, "reward_model": model}))
        learner, collector = both(run)
        collector.send(transitions(4, 0))
        assert collected(run, learner) is None


def test_a_restarted_coordinator_sends_no_transition_twice(tmp_path: Path) -> None:
    run = Run(with_rnd(tmp_path))
    learner, collector = both(run)
    collector.send(transitions(4, 0))
    assert collected(run, learner) == [*range(4)]
    run.restart()
    assert collected(run, learner) is None
    collector.send(transitions(4, 4))
    assert collected(run, learner) == [*range(4, 8)]


def test_transitions_that_wait_for_a_round_are_at_most_as_many_as_the_buffer_holds(tmp_path: Path) -> None:
    run = Run(with_rnd(tmp_path, other={"replay_buffer": {"replay_buffer_size": 10}}))
    learner, collector = both(run)
    for first in range(0, 40, 4):
        collector.send(transitions(4, first))
    assert collected(run, learner) == [*range(32, 40)]


def test_policies_that_do_not_learn_from_single_steps_are_refused(tmp_path: Path) -> None:
    cfg = scripted(tmp_path, {"type": "r2d2", "nstep": 1, "reward_model": RND})
    with pytest.raises(ValueError, match=r"main\.policy\.reward_model\.type must be None with 'r2d2', which does not"):
        Coordinator(cfg, MemoryStore())


def test_several_ranks_and_rewards_that_are_stored_are_refused(tmp_path: Path) -> None:
    ranks = with_rnd(tmp_path)
    ranks["system"]["learner"] = {"multi_gpu": True}
    with pytest.raises(ValueError, match=r"system\.learner\.multi_gpu must be False with a reward model"):
        Coordinator(ranks, MemoryStore())
    pwil = with_rnd(tmp_path, reward_model={"type": "pwil", "data_path": "expert.npz"})
    with pytest.raises(ValueError, match="reward each transition once in a distributed run"):
        Coordinator(pwil, MemoryStore())


REPLAY = sorted(name for name, (kind, model) in CASES.items() if kind in ("dqn", "rainbow") and model["type"] != "pwil")


@pytest.mark.parametrize(
    "case", ["dqn_rnd", *(pytest.param(case, marks=pytest.mark.slow) for case in REPLAY if case != "dqn_rnd")]
)
def test_a_policy_learns_with_a_reward_model(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, model = CASES[case]
    model = {"hidden_size_list": [8], "batch_size": 8, **model}
    if model["type"] in FROM_DATA:
        model["data_path"] = write_expert(tmp_path, is_continuous=False)
    if model["type"] == "pdeil":
        del model["batch_size"], model["hidden_size_list"]
    policy = deep_merge(DQN, {"type": kind, "reward_model": None})
    norm_obs = model["type"] in ("rnd", "icm", "gail")  # the others refuse it
    cfg = config(tmp_path / "run", {**policy, "reward_model": model}, 2, max_train_iter=40, norm_obs=norm_obs)
    seen: list[torch.Tensor] = []
    reports: list[dict[str, Any]] = []
    keep, pop = RewardLearner.collect_data, RewardLearner.pop_report

    def collect_data(self: Any, rows: Any) -> Any:
        seen.append(torch.cat([rows["obs"], rows["episode_id"].double()[:, None]], 1))
        return keep(self, rows)

    def pop_report(self: Any) -> Any:
        reports.append(pop(self))
        return dict(reports[-1])

    monkeypatch.setattr(RewardLearner, "collect_data", collect_data)
    monkeypatch.setattr(RewardLearner, "pop_report", pop_report)
    with coordinating(cfg) as (coordinator, start):
        start(Learner)
        for _ in range(2):
            start(CommCollector)
    status = coordinator.status()
    assert status["train_iter"] == 40
    assert status["refused"] == status["restarts"] == 0
    assert all("reward_model_score" in report for report in reports)
    if model["type"] in ("red", "trex", "drex"):  # which learn from their data alone
        assert not seen
        return
    rows = torch.cat(seen)
    assert 16 < len(rows) <= status["sample"]
    assert len(rows.unique(dim=0)) == len(rows)
