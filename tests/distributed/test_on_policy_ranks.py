"""On-policy algorithms on several ranks of a learner: the weights of two ranks of ``fit``, and what ranks learn."""

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
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import MemoryStore
from tests.distributed.process_tree import ProcessTree
from tests.distributed.test_on_policy import POLICIES, Weights, config, policy_of
from tests.distributed.test_same_weights import meeting_collectors, over_http
from tests.processes import ROOT, run, run_ranks_of_lightning, start, wait_for

SCRIPT = Path(__file__).with_name("on_policy_ranks_script.py")
PROGRAM = ["-c", "from lightning_ding.entry.cli import main; main()", "parallel"]
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


def test_ranks_get_their_shares_see_the_env_steps_of_rank_zero_and_stop_together(tmp_path: Path) -> None:
    run_ranks_of_lightning(SCRIPT, "feed", tmp_path)
    for rank, found in enumerate(reports(tmp_path, "feed")):
        first = 2 * rank
        for data in found["data"]:
            assert data["env_id"].tolist() == [first, first + 1]
            assert torch.equal(data["obs"]["x"], torch.eye(4)[first : first + 2])
        assert {40, 60, 70} <= set(found["steps"])  # also while rank zero waits
        assert found["is_over"]


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


def test_whole_episodes_are_not_rewarded_on_several_ranks(tmp_path: Path) -> None:
    cfg = of_ranks(tmp_path, "ppo")
    cfg["main"]["policy"]["reward_model"] = {"type": "pwil", "data_path": "expert.npz"}
    with pytest.raises(ValueError, match=r"reward_model\.type must be one that does not reward whole episodes, with"):
        Coordinator(cfg, MemoryStore())


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
        output, _ = learner.communicate(timeout=250)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(learner.pid, signal.SIGKILL)
    return output


def check_same(mine: list[Weights], other: list[Weights]) -> None:
    for one, expected in zip(mine, other, strict=True):
        assert one.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in one.items())


OTHERS = sorted(POLICIES.keys() - {"ppo", "ppo, n_sample is no multiple"})


@pytest.mark.parametrize("name", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_two_ranks_over_http_and_in_one_process_learn_the_same_weights_to_the_last_bit(
    tmp_path: Path, name: str
) -> None:
    cfg = of_ranks(tmp_path, name)
    learn(tmp_path, cfg, "learner")
    run(SCRIPT, "fit", tmp_path, timeout=250)
    ranks, in_one_process = reports(tmp_path, "learner"), reports(tmp_path, "fit")
    found = ranks[0]["published"]
    check_same(found[:ROLLOUTS], in_one_process[0]["published"])
    assert any(not torch.equal(value, found[-1][key]) for key, value in found[0].items())
    assert len(ranks[0]["taken"]) == ROLLOUTS
    if name == "ppo":
        check_used_once(ranks, passes=2, updates=4)


def check_used_once(ranks: list[dict[str, Any]], passes: int, updates: int) -> None:
    """See that in each pass over a rollout, all ranks together learn from each of its transitions once.

    Args:
        ranks: Reports of the ranks.
        passes: Passes over a rollout.
        updates: Updates of a rollout.
    """
    per_pass = updates // passes
    for rollout, taken in enumerate(ranks[0]["taken"]):
        for first in range(rollout * updates, (rollout + 1) * updates, per_pass):
            steps = range(first, first + per_pass)
            parts = [rows for rank in ranks for train_iter, rows in rank["updates"] if train_iter in steps]
            assert [len(rows) for rows in parts] == [16] * RANKS * per_pass
            assert torch.equal(torch.cat(parts).sort().values, taken.sort().values)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_that_were_stopped_continue_to_the_last_bit(tmp_path: Path) -> None:
    cfg = of_ranks(tmp_path, "ppo")
    learn(tmp_path, cfg, "stopped", "learner")
    run(SCRIPT, "fit", tmp_path, timeout=250)
    (first, _), (second, _), (whole, _) = (reports(tmp_path, what) for what in ("stopped", "learner", "fit"))
    stopped = len(first["published"]) - 1  # its last weights are those from which the other one continues
    assert 2 <= stopped < ROLLOUTS
    found = [*first["published"][:stopped], *second["published"]]
    assert len(found) == ROLLOUTS + 1
    check_same(found[:ROLLOUTS], whole["published"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transport", ["flask_fs", "ray"])
def test_ppo_on_two_ranks_balances_the_pole(tmp_path: Path, transport: str) -> None:
    if transport == "ray":
        pytest.importorskip("ray")
    settings = {
        "main.exp_name": tmp_path / "run",
        "main.policy.collect.n_sample": 400,  # on each rank, as the size of a minibatch
        "main.policy.learn.batch_size": 50,
        "system.transport": transport,
        "system.collector.num": 2,
        "main.env.collector_env_num": 4,
        "system.learner.multi_gpu": "true",
        "system.learner.trainer": "{accelerator: cpu, devices: 2, strategy: ddp}",
    }
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    file = ROOT / "recipes/configs/parallel_ppo_cartpole.yaml"
    processes = ProcessTree(tmp_path, "RUN_OF_RANKS")
    run(*PROGRAM, "--config", file, *given, timeout=800, environment={"RUN_OF_RANKS": str(tmp_path)})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["results"]["test/return_mean"] >= 475
    assert result["error"] is None
    assert not [*(tmp_path / "run" / "data").glob("*/*")]
    wait_for(lambda: not processes.find())  # agents of Ray may end a little later
