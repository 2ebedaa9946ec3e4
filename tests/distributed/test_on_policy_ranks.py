"""On-policy algorithms on several ranks of a learner: the weights of two ranks of ``fit``, and what each rank learns."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.datamodules.shared_rollout import shares
from tests.distributed.test_on_policy import POLICIES, Weights, config, policy_of
from tests.distributed.test_same_weights import meeting_collectors, over_http
from tests.processes import run, start

SCRIPT = Path(__file__).with_name("on_policy_ranks_script.py")
ROLLOUTS, RANKS = 4, 2
UPDATES = {"a2c": 1, "pg": 1, "trpo": 5}  # of a rollout; 4 of all others


# ---------------------------------------------------------------------- dividing a rollout


def rollout(envs: list[int], episodes: list[int] | None = None) -> dict[str, Any]:
    return {"env_id": torch.tensor(envs), "episode_id": torch.tensor(envs if episodes is None else episodes)}


@pytest.mark.parametrize(
    ("envs", "ranks", "expected"),
    [
        ([0, 1, 0, 1], 1, [[0, 1, 2, 3]]),
        ([0, 1, 0, 1], 2, [[0, 2], [1, 3]]),
        ([0, 1, 2, 3, 0, 1, 2, 3], 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),  # whole envs, in the order of the rollout
        ([0, 1, 2, 0, 1, 2], 2, [[0, 1, 3], [2, 4, 5]]),  # env 1 is cut: its first step, then its second one
        ([5, 5, 5, 5], 2, [[0, 1], [2, 3]]),
        ([7, 7, 2], 2, [[0, 2], [1]]),
    ],
)
def test_ranks_get_equal_shares_that_follow_the_envs(envs: list[int], ranks: int, expected: list[list[int]]) -> None:
    assert [rows.tolist() for rows in shares(rollout(envs), ranks)] == expected


def test_shares_of_whole_episodes_cut_none() -> None:
    envs, episodes = [0, 1, 0, 1, 0, 0, 0], [10, 20, 10, 20, 11, 12, 12]
    found = [rows.tolist() for rows in shares(rollout(envs, episodes), 2, in_episodes=True)]
    assert found == [[0, 2, 4], [1, 3, 5, 6]]


def test_each_transition_is_in_one_share() -> None:
    torch.manual_seed(0)
    for ranks in (1, 2, 3, 7):
        for in_episodes in (False, True):
            env_id = torch.randint(0, 5, (101,))
            made = {"env_id": env_id, "episode_id": 100 * env_id + torch.arange(101) // 9}
            found = shares(made, ranks, in_episodes)
            assert torch.cat(found).sort().values.tolist() == list(range(101))
            sizes = [len(rows) for rows in found]
            assert in_episodes or max(sizes) - min(sizes) <= 1
            whole = [set(made["episode_id"][rows].tolist()) for rows in found]
            assert not in_episodes or sum(map(len, whole)) == len(set.union(*whole))


@pytest.mark.parametrize(("in_episodes", "unit"), [(False, "transitions"), (True, "whole episodes")])
def test_a_rollout_that_cannot_be_divided_raises(in_episodes: bool, unit: str) -> None:
    with pytest.raises(ValueError, match=rf"a rollout must be at least 3 {unit}, one for each rank, got 2"):
        shares(rollout([0, 1]), 3, in_episodes)


# ---------------------------------------------------------------------- two ranks over HTTP and in one process


def of_ranks(folder: Path, name: str) -> dict[str, Any]:
    """Return the config of a run with two ranks and two collectors, which is written into the folder."""
    options = {"norm_obs": True, "norm_reward": True} if name in ("ppo", "a2c") else {}
    cfg = config(folder / "run", policy_of(name), RANKS, max_train_iter=ROLLOUTS * UPDATES.get(name, 4), **options)
    trainer = {"accelerator": "cpu", "logger": False, "devices": RANKS, "strategy": "ddp"}
    cfg["system"]["learner"] |= {"multi_gpu": True, "trainer": trainer}
    folder.mkdir(exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps(cfg))
    return cfg


def reports(folder: Path, what: str) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{what}_{rank}.pt", weights_only=True) for rank in range(RANKS)]


def learn(folder: Path, cfg: dict[str, Any], *learners: str) -> None:
    """Learn over HTTP with learners that follow each other."""
    kind = meeting_collectors(RANKS)
    with over_http(cfg) as connect:
        channels = [connect() for _ in range(1 + RANKS)]
        threads = [threading.Thread(target=kind(cfg, one).start, daemon=True) for one in channels[1:]]
        for thread in threads:
            thread.start()
        outputs = [_output(folder, what) for what in learners]
        for thread in threads:
            thread.join(60)
        status = channels[0].call("status")
        for channel in channels:
            channel.close()
    assert (status["is_over"], status["error"], status["too_old"]) == (True, None, 0), outputs


def _output(folder: Path, what: str) -> str:
    """Run a learner and return its output; none of its processes outlives it."""
    learner = start([SCRIPT, what, folder], start_new_session=True)
    try:
        output, _ = learner.communicate(timeout=100)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(learner.pid, signal.SIGKILL)
    return output


def check_same(mine: list[Weights], other: list[Weights]) -> None:
    for one, expected in zip(mine, other, strict=True):
        assert one.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in one.items())


def test_it(tmp_path: Path) -> None:
    name = "ppo"
    cfg = of_ranks(tmp_path, name)
    learn(tmp_path, cfg, "learner")
    run(SCRIPT, "fit", tmp_path)
    (zero, one), (expected, _) = reports(tmp_path, "learner"), reports(tmp_path, "fit")
    print(len(zero["published"]), len(expected["published"]), len(zero["taken"]), [len(x) for x in zero["taken"]])
    print(len(zero["updates"]), len(one["updates"]))
    check_same(zero["published"][:-1], expected["published"])
