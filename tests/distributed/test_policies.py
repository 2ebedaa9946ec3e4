"""Which policies a distributed run trains, and the errors of the others before anything starts."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.config import deep_merge, resolve
from lightning_ding.distributed import Coordinator
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.settings import ReplaySettings, check_policy, known_policies
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.entry.config_file import check
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import TDMPC2, TINY_DREAMER
from tests.toys.datasets import steps_in

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
RUN |= DEMONSTRATIONS
IMAGINES = {"mbpo"}
ON_POLICY = {"a2c", "pg", "ppg", "ppo", "pqn", "recurrent_ppo", "trpo"}
ON_POLICY |= {"mappo", "ippo", "recurrent_mappo", "happo", "coma", "mat"}
RUN |= ON_POLICY
TEAMS |= dict.fromkeys(ON_POLICY - {"a2c", "pg", "ppg", "ppo", "pqn", "recurrent_ppo", "trpo"}, TEAMS["qmix"])
TEAMS |= dict.fromkeys(("maddpg", "masac"), "lightning_ding.envs.teams.line.CoverGame")
FAST = {"dqfd", "ppo", "ppo_offpolicy"}
CONTINUOUS = {"crossq", "d4pg", "ddpg", "pdqn", "redq", "rlpd", "sac", "td3", "tdmpc2", "tqc", "xqc", "bro", "td7"}


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
    assert of_package() == RUN | DATA | IMAGINES
    assert set(known_policies()) & of_package() == RUN


@pytest.mark.parametrize("name", sorted(RUN))
def test_policy_that_runs_passes_the_check(name: str) -> None:
    data = {"demonstrations": "demos.npz"} if name in DEMONSTRATIONS else {}
    check(resolve(ParallelConfig, {"main": {"policy": {"type": name}, **data}}))


@pytest.mark.parametrize("name", sorted(DATA | IMAGINES))
def test_policy_that_needs_data_is_refused_by_the_check_which_names_those_that_run(name: str) -> None:
    found = refusal({"type": name})
    where = "its data set" if name in DATA else "a model of the env, which a replay buffer next to it trains"
    assert found.endswith(f" in a distributed run (`lightning-ding fit` trains this one on {where}), got {name!r}")
    names = found.removeprefix("main.policy must be one of ").partition(" in a distributed run")[0].split(", ")
    assert set(names) & of_package() == RUN


def test_reward_model_and_buffer_that_do_not_fit_are_refused_by_the_check() -> None:
    model = refusal({"type": "dqn", "nstep": 1, "reward_model": {"type": "pwil", "data_path": "expert.npz"}})
    assert model.startswith("main.policy.reward_model.type must be one that does not reward each transition once")
    policy = {"type": "dqn", "priority": True, "other": {"replay_buffer": {"type": "naive"}}}
    cfg = resolve(ParallelConfig, {"main": {"policy": policy}})
    with pytest.raises(ValueError, match="priority needs a prioritised buffer"):
        check(cfg)


@pytest.mark.parametrize("name", sorted(DEMONSTRATIONS))
def test_policy_that_needs_demonstrations_names_the_key(name: str) -> None:
    message = f"main.demonstrations must be a data set, because '{name}' learns from demonstrations, got None"
    with pytest.raises(ValueError, match=message):
        check(resolve(ParallelConfig, {"main": {"policy": {"type": name}}}))


@pytest.mark.parametrize("name", ["ppo", "r2d2", "ppo_offpolicy", "qmix"])
def test_demonstrations_of_a_policy_that_cannot_learn_from_them_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"main.demonstrations must be None, because '{name}' learns from"):
        check(resolve(ParallelConfig, {"main": {"policy": {"type": name}, "demonstrations": "demos.npz"}}))


@pytest.mark.parametrize(
    ("name", "share", "own"), [("dqn", 0.25, 6), ("dqn", 0.01, 7), ("dqn", 0.99, 1), ("r2d3", 0.3, 5.6)]
)
def test_sample_ratio_counts_the_collected_part_of_a_minibatch(name: str, share: float, own: float) -> None:
    learn = {"batch_size": 8, "update_per_collect": 3}
    policy = {"type": name, "learn": learn, "collect": {"n_sample": 4}, "random_collect_size": 0}
    main: dict[str, Any] = {"policy": policy, "demonstrations": "demos.npz", "demonstration_share": share}
    settings = ReplaySettings.of(resolve(ParallelConfig, {"main": main}))
    assert settings.samples_per_insert == pytest.approx(3 * own / 4)
    assert (settings.round_size, settings.warm_up) == (math.ceil(3 * own), 8)
    fixed = ReplaySettings.of(
        resolve(ParallelConfig, {"main": main, "system": {"coordinator": {"samples_per_insert": 2.0}}})
    )
    assert fixed.samples_per_insert == 2


def demonstrations(folder: Path, env_id: str, size: int = 40) -> str:
    """Write a data set of random actions in an env, and return its path."""
    env: Any = gym.make(env_id)
    env.action_space.seed(0)
    file = folder / "demos.npz"
    np.savez(file, **steps_in(env, env.action_space.sample, size))
    return str(file)


def learn(folder: Path, name: str, **main: Any) -> dict[str, Any]:
    """Run a policy until it has made a few rounds, and return the status of the coordinator."""
    sequences: dict[str, Any] = {"impala": {"unroll_len": 4}, "r2d2": {"burnin_step": 1, "learn_unroll_len": 4}}
    sequences["ngu"] = sequences["r2d2"]
    sequences["r2d3"] = {**sequences["r2d2"], "learn": {"per_train_iter_k": 4}}
    sequences["dqfd"] = {"learn": {"per_train_iter_k": 4}, "priority": True}
    sequences["dreamerv3"] = {"learn_unroll_len": 4, "horizon": 2, "model": TINY_DREAMER}
    sequences["tdmpc2"] = {name: TDMPC2[name] for name in ("model", "plan")}
    policy: dict[str, Any] = {
        "type": name,
        "learn": {"update_per_collect": 2, "batch_size": 4} if name not in ON_POLICY else {"batch_size": 4},
        "collect": {"n_sample": 8} if name != "pg" else {"n_episode": 2},
    }
    policy = deep_merge(policy, sequences.get(name, {}))
    env_id = TEAMS.get(name, "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1")
    if name in DEMONSTRATIONS:
        main["demonstrations"] = demonstrations(folder.parent, str(env_id))
    check_policy(policy, main.get("demonstrations"))
    env = {"env_id": env_id, "collector_env_num": 2}
    learner = {"validate": False, "trainer": {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}}
    coordinator = {"commander": {"eval_interval": None, "collector_task_space": 1}}
    cfg = {
        "main": {"exp_name": str(folder), "policy": policy, "env": env, "max_train_iter": 6, **main},
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
    "name", [*sorted(FAST), *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(RUN - FAST))]
)
def test_policy_that_the_check_accepts_learns(tmp_path: Path, name: str) -> None:
    status = learn(tmp_path / "run", name)
    assert status["train_iter"] >= 6 if name in ON_POLICY else status["train_iter"] == 6
    assert status["refused"] == 0
