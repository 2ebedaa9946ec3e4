"""Which policies a distributed run trains, and what the others are told before anything starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed import Coordinator
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.settings import check_policy, known_policies
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.entry.config_file import check
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import TDMPC2, TINY_DREAMER

RUN = {
    *(
        "acer",
        "bdq",
        "c51",
        "crossq",
        "d4pg",
        "ddpg",
        "discrete_sac",
        "dqn",
        "dreamerv3",
        "fqf",
        "impala",
        "iqn",
        "mdqn",
        "ngu",
        "pdqn",
        "ppg_offpolicy",
        "ppo_offpolicy",
    ),
    *("maddpg", "masac"),
    *("qrdqn", "r2d2", "rainbow", "redq", "sac", "sql", "sqn", "td3", "tdmpc2", "tqc", "xqc", "bro", "td7"),
    *("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn"),
}
TEAMS = dict.fromkeys(
    ("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn"), "lightning_ding.envs.teams.games.TwoStepGame"
)
DATA = {"awac", "bc", "bcq", "calql", "cql", "discrete_cql", "dt", "edac", "iql", "td3_bc"}
DEMONSTRATIONS = {"dqfd", "r2d3", "rlpd", "sqil"}
IMAGINES = {"mbpo"}
ON_POLICY = {"a2c", "pg", "ppg", "ppo", "pqn", "recurrent_ppo", "trpo"}
ON_POLICY |= {"mappo", "ippo", "recurrent_mappo", "happo", "coma", "mat"}
RUN |= ON_POLICY
TEAMS |= dict.fromkeys(ON_POLICY - {"a2c", "pg", "ppg", "ppo", "pqn", "recurrent_ppo", "trpo"}, TEAMS["qmix"])
TEAMS |= dict.fromkeys(("maddpg", "masac"), "lightning_ding.envs.teams.line.CoverGame")
FAST = {"ppo", "ppo_offpolicy"}
CONTINUOUS = {"crossq", "d4pg", "ddpg", "pdqn", "redq", "sac", "td3", "tdmpc2", "tqc", "xqc", "bro", "td7"}


def of_package() -> set[str]:
    """Return the names of the policies of the package."""
    kinds = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    return {name for name, kind in kinds.items() if kind.__module__.startswith("lightning_ding.policy.")}


def refusal(policy: dict[str, Any]) -> str:
    """Return the error of the check of a config, which every command makes first."""
    with pytest.raises(ValueError, match=r"^main\.policy") as caught:
        check(resolve(ParallelConfig, {"main": {"policy": policy}}))
    return str(caught.value)


def test_every_policy_either_runs_or_is_refused() -> None:
    assert of_package() == RUN | DATA | DEMONSTRATIONS | IMAGINES
    assert set(known_policies()) & of_package() == RUN


@pytest.mark.parametrize("name", sorted(RUN))
def test_policy_that_runs_passes_the_check(name: str) -> None:
    check(resolve(ParallelConfig, {"main": {"policy": {"type": name}}}))


@pytest.mark.parametrize("name", sorted(DATA | DEMONSTRATIONS | IMAGINES))
def test_policy_that_needs_data_is_refused_by_the_check_which_names_those_that_run(name: str) -> None:
    found = refusal({"type": name})
    where = "its data set" if name in DATA else "data.demonstrations"
    if name in IMAGINES:
        where = "a model of the env, which a replay buffer next to it trains"
    assert found.endswith(f" in a distributed run (`lightning-ding fit` trains this one on {where}), got {name!r}")
    names = found.removeprefix("main.policy must be one of ").partition(" in a distributed run")[0].split(", ")
    assert set(names) & of_package() == RUN


def test_reward_model_and_buffer_that_do_not_fit_are_refused_by_the_check() -> None:
    model = refusal({"type": "dqn", "nstep": 1, "reward_model": {"type": "rnd"}})
    assert model.startswith("main.policy.reward_model.type must be None in a distributed run")
    policy = {"type": "dqn", "priority": True, "other": {"replay_buffer": {"type": "naive"}}}
    cfg = resolve(ParallelConfig, {"main": {"policy": policy}})
    with pytest.raises(ValueError, match="priority needs a prioritised buffer"):
        check(cfg)


def learn(folder: Path, name: str) -> dict[str, Any]:
    """Run a policy until it has made a few rounds, and return the status of the coordinator."""
    sequences: dict[str, Any] = {"impala": {"unroll_len": 4}, "r2d2": {"burnin_step": 1, "learn_unroll_len": 4}}
    sequences["ngu"] = sequences["r2d2"]
    sequences["dreamerv3"] = {"learn_unroll_len": 4, "horizon": 2, "model": TINY_DREAMER}
    sequences["tdmpc2"] = {name: TDMPC2[name] for name in ("model", "plan")}
    policy: dict[str, Any] = {
        "type": name,
        "learn": {"update_per_collect": 2, "batch_size": 4} if name not in ON_POLICY else {"batch_size": 4},
        "collect": {"n_sample": 8} if name != "pg" else {"n_episode": 2},
    }
    policy |= sequences.get(name, {})
    check_policy(policy)
    env_id = TEAMS.get(name, "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1")
    env = {"env_id": env_id, "collector_env_num": 2}
    learner = {"validate": False, "trainer": {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}}
    coordinator = {"commander": {"eval_interval": None, "collector_task_space": 1}}
    cfg = {
        "main": {"exp_name": str(folder), "policy": policy, "env": env, "max_train_iter": 6},
        "system": {"coordinator": coordinator, "learner": learner},
    }
    store = MemoryStore()
    run = Coordinator(cfg, store)
    run.start()
    workers = [kind(cfg, InProcessChannel(run.handle, store)) for kind in (CommLearner, CommCollector)]
    threads = [threading.Thread(target=worker.start, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        assert run.wait(60), run.status()
        for thread in threads:
            thread.join(30)
        assert run.failure is None
        return run.status()
    finally:
        run.close()


@pytest.mark.parametrize(
    "name", ["ppo", "ppo_offpolicy", *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(RUN - FAST))]
)
def test_policy_that_the_check_accepts_learns(tmp_path: Path, name: str) -> None:
    status = learn(tmp_path / "run", name)
    assert status["train_iter"] >= 6 if name in ON_POLICY else status["train_iter"] == 6
    assert status["refused"] == 0
