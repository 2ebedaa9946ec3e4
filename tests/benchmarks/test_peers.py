"""The peers of the learning benchmarks: which experiments they run, and that they can run them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import learn, offline, sbx_side, tianshou_offline, tianshou_side, zoo
from benchmarks.proofs import PROOFS, Plan


def test_each_experiment_has_the_peers_with_settings_for_its_env() -> None:
    found = {side: {name for name, one in PROOFS.items() if learn.has_peer(one, side)} for side in learn.PEERS}
    assert found["tianshou"] == {f"{kind}_cartpole" for kind in ("iqn", "fqf", "c51", "discrete_sac")} | {
        "redq_pendulum"
    }
    assert {"recurrent_ppo_no_velocity", "crossq_pendulum", "tqc_pendulum", "qrdqn_cartpole"} <= found["peer"]
    continuous = {f"{kind}_pendulum" for kind in ("ppo", "sac", "td3", "ddpg", "tqc", "crossq")}
    assert found["sbx"] == continuous | {"ppo_cartpole", "dqn_cartpole"}
    assert not {"dqn_defaults_cartpole", "ppo_no_velocity", "pg_cartpole"} & found["peer"]


def test_run_of_a_peer_is_recorded_with_its_settings(tmp_path: Path) -> None:
    run: Any = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}
    learn.save("iqn_cartpole", 10, "tianshou", run, tmp_path)
    record = json.loads((tmp_path / "iqn_cartpole.json").read_text())
    assert record["tianshou"]["config"] == tianshou_side.SETTINGS["iqn"]["CartPole-v1"]


def test_default_sides_need_no_tianshou(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def note(*arguments: Any) -> list[str]:
        started.append(arguments[:2])
        return []

    monkeypatch.setattr(learn, "in_processes", note)
    monkeypatch.setattr(sys, "argv", ["learn", "--only", "iqn_cartpole", "ppo_cartpole", "--out", str(tmp_path)])
    learn.main()
    sides = [(name, list(dict.fromkeys(side for _, side in tasks))) for name, tasks in started]
    assert sides == [("iqn_cartpole", ["ours"]), ("ppo_cartpole", ["ours", "peer"])]


def test_offline_runs_of_each_implementation_are_kept_and_shown(tmp_path: Path) -> None:
    file, data = tmp_path / "offline.json", {"transitions": 9, "mean": -900.0, "max": -300.0}
    for side in ("ours", "tianshou"):
        for seed, score in ((0, -500.0), (1, -400.0), (0, -450.0)):
            made = {"seed": seed, "seconds": 1.0, "return": score, "data": data}
            offline.save("cql", {**made, "side": side} if side == "tianshou" else made, file)
    assert offline.table(file).splitlines()[2:] == [
        "| `cql` | lightning_ding | -450, -400 | -900 | -300 |",
        "| `cql` | Tianshou, examples | -450, -400 | -900 | -300 |",
    ]


def test_offline_algorithm_that_the_peer_lacks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["offline", "--side", "tianshou", "--only", "iql"])
    with pytest.raises(SystemExit):
        offline.main()
    assert "got ['iql']" in capsys.readouterr().err


def test_offline_peer_has_the_data_set_of_each_algorithm() -> None:
    assert tianshou_offline.SETTINGS.keys() == tianshou_offline.BUILDERS.keys()
    assert tianshou_offline.SETTINGS.keys() <= offline.ALGORITHMS.keys()
    assert tianshou_side.SETTINGS.keys() == tianshou_side.BUILDERS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "env_id"), [(kind, env) for kind, by in tianshou_side.SETTINGS.items() for env in by])
def test_tianshou_evaluates_at_regular_steps_and_at_the_end(kind: str, env_id: str) -> None:
    pytest.importorskip("tianshou")  # of the extra `bench`
    run = tianshou_side.train(kind, env_id, Plan(1100, 500, n_episode=2, n_test=3), seed=0)
    steps = [step for step, _, _ in run["curve"]]
    assert steps[-1] in range(1100, 1111)
    assert len(steps) in (2, 3)  # the warm-up may take the place of the first evaluation
    assert run["seconds"] == run["curve"][-1][1] > 0


@pytest.mark.slow
def test_tianshou_learns_from_scaled_actions() -> None:
    pytest.importorskip("tianshou")  # of the extra `bench`
    from gymnasium import spaces

    rows = {"obs": np.zeros((2, 3)), "next_obs": np.ones((2, 3)), "action": np.array([[-2.0], [1.0]])}
    rows |= {"reward": np.zeros(2), "terminated": np.array([False, True]), "truncated": np.array([False, False])}
    replay = tianshou_offline.buffer(rows, spaces.Box(-2.0, 2.0, (1,)))
    assert replay.act.tolist() == [[-1.0], [0.5]]
    assert replay.done.tolist() == [False, True]


@pytest.mark.slow
def test_peer_with_normalised_observations_is_evaluated_with_those_of_training() -> None:
    pytest.importorskip("sb3_contrib")  # of the extra `bench`
    env_id = PROOFS["recurrent_ppo_no_velocity"].env_id
    run = zoo.train("recurrent_ppo", env_id, Plan(512, 256, n_episode=2, n_test=3), seed=0)
    assert [step for step, _, _ in run["curve"]] == [256, 512]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "env_id"), [("dqn", "CartPole-v1"), ("tqc", "Pendulum-v1")])
def test_sbx_is_tested_with_the_weights_of_its_best_evaluation(kind: str, env_id: str) -> None:
    pytest.importorskip("sbx")  # of the extra `bench`
    run = sbx_side.train(kind, env_id, Plan(1024, 256, n_episode=2, n_test=3), seed=0)
    assert [step for step, _, _ in run["curve"]] == [256, 512, 768, 1024]


def test_weights_of_sbx_are_restored() -> None:
    class Policy:
        def __init__(self) -> None:
            self.actor_state, self.qf_state, self.noise_key = "first actor", "first critic", "key"

    policy = Policy()
    kept = sbx_side._states(policy)
    policy.actor_state, policy.qf_state, policy.noise_key = "later actor", "later critic", "later key"
    sbx_side._load_states(policy, kept)
    assert vars(policy) == {"actor_state": "first actor", "qf_state": "first critic", "noise_key": "later key"}
