"""DI-engine itself, for ``benchmarks/ding_race.py``; run by a Python that has DI-engine, not this project.

    python benchmarks/ding_side.py CONFIG SEED ENTRY SECONDS
    python benchmarks/ding_side.py experts CONFIGS

The first runs a config and prints one line of JSON: whether the stop value was reached, the last evaluation, env steps,
updates, and the seconds of the entry. The second trains the experts in the folder ``classic_control`` of the dizoo and
writes their checkpoints and data sets to the working directory, where the configs of their pupils look for them.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
import signal
import sys
import time
from argparse import Namespace
from copy import deepcopy
from importlib import import_module
from typing import Any

PPO_EXPERT = "cartpole_ppo_seed0/ckpt/ckpt_best.pth.tar"
DQN_EXPERT = "cartpole_dqn_seed0/ckpt/ckpt_best.pth.tar"
BC_DATA = "cartpole_dqn_seed0/expert_data.pkl"
SQIL_EXPERT = "cartpole_dqn_seed0/ckpt/eval.pth.tar"
TRANSITIONS = ("obs", "action", "reward", "next_obs", "done")


def read(file: str) -> list[Any]:
    """Return the pair of a config file."""
    names = runpy.run_path(file)
    return [deepcopy(names["main_config"]), deepcopy(names["create_config"])]


def start(pair: list[Any], seed: int, entry: str, file: str) -> None:
    """Train as the file itself does, with the paths of :func:`experts` where it has none."""
    from ding import entry as entries

    if entry == "offline":
        entries.serial_pipeline_offline(pair, seed=seed)
    elif entry == "bc":
        entries.serial_pipeline_bc(pair, seed=seed, data_path=BC_DATA)
    elif entry == "sqil":
        expert = read(file.replace("_sqil_", "_dqn_"))
        expert[1].pop("replay_buffer")  # SQIL fails with buffers of two kinds: KeyError: 'replay_unique_id'
        entries.serial_pipeline_sqil(pair, expert, seed=seed)
    elif entry == "trex":
        entries.trex_collecting_data(Namespace(cfg=deepcopy(pair), seed=seed))
        entries.serial_pipeline_preference_based_irl(pair, seed=seed)
    elif entry == "guided_cost":
        pair[0].policy.collect.model_path = PPO_EXPERT
        entries.serial_pipeline_guided_cost(pair, seed=seed)
    elif entry == "ppg":
        import_module("dizoo.classic_control.cartpole.entry.cartpole_ppg_main").main(pair[0], seed=seed)
    else:
        (entries.serial_pipeline_onpolicy if entry == "onpolicy" else entries.serial_pipeline)(pair, seed=seed)


def run(file: str, seed: int, entry: str, limit: float) -> dict[str, Any]:
    """Run a config until it ends or its CPU seconds are over, and return the last evaluation."""
    import numpy as np
    from ding.worker import InteractionSerialEvaluator

    last: dict[str, Any] = {"reached": False, "value": None, "env_step": 0, "train_iter": 0}
    evaluate = InteractionSerialEvaluator.eval

    def recorded(self: Any, save: Any = None, train_iter: int = -1, envstep: int = -1, *rest: Any, **more: Any) -> Any:
        stop, info = evaluate(self, save, train_iter, envstep, *rest, **more)
        value = float(np.mean(info["eval_episode_return"]))
        last.update(reached=bool(stop), value=value, env_step=max(0, int(envstep)), train_iter=int(train_iter))
        return stop, info

    def over(*_: Any) -> None:
        raise TimeoutError

    pair = read(file)
    InteractionSerialEvaluator.eval = recorded
    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, limit)
    began, cpu = time.perf_counter(), time.process_time()
    with contextlib.suppress(TimeoutError):
        start(pair, seed, entry, file)
    return {**last, "seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}


def experts(configs: str) -> None:
    """Train the experts of DI-engine's configs and collect their data sets, as its examples do."""
    import numpy as np
    from ding.entry import application_entry, collect_demo_data, serial_pipeline, serial_pipeline_onpolicy

    cartpole, pendulum = f"{configs}/cartpole/config/cartpole_", f"{configs}/pendulum/config/pendulum_"
    pair = read(f"{cartpole}dqn_config.py")
    pair[0].policy.learn.learner = {"hook": {"save_ckpt_after_iter": 100}}  # T-REX takes iterations 0, 100, ... 500
    serial_pipeline(pair, seed=0)
    shutil.copy(DQN_EXPERT, SQIL_EXPERT)
    pair = read(f"{cartpole}dqn_config.py")
    save = application_entry.offline_data_save_type

    def save_both(rows: Any, path: str, **kind: Any) -> None:
        save(rows, path, **kind)
        columns: dict[str, Any] = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in TRANSITIONS}
        np.savez(path.replace(".pkl", ".npz"), **columns)  # for our side, which reads no pickled files

    application_entry.offline_data_save_type = save_both
    collect_demo_data(pair, 0, 10_000, expert_data_path=BC_DATA, state_dict_path=DQN_EXPERT)
    application_entry.offline_data_save_type = save
    serial_pipeline_onpolicy(read(f"{cartpole}ppo_config.py"), seed=0)
    for kind, folder, steps in (("td3", "td3", 40_000), ("sac", "pendulum_sac_data_generation", 10_000)):
        expert, data = read(f"{pendulum}{kind}_config.py"), read(f"{pendulum}{kind}_data_generation_config.py")
        expert[0].exp_name = data[0].exp_name = folder
        serial_pipeline(expert, seed=0)
        paths = {"expert_data_path": f"./{folder}/expert.pkl", "state_dict_path": f"./{folder}/ckpt/ckpt_best.pth.tar"}
        collect_demo_data(data, 0, steps, **paths)


def main() -> None:
    """Run a config or the experts in the working directory, which gets the folders of the experiments."""
    del sys.path[0]  # the folder of this file, whose dizoo.py would hide the package dizoo
    if sys.argv[1] == "experts":
        experts(sys.argv[2])
        return
    file, seed, entry, limit = sys.argv[1:]
    print(json.dumps(run(file, int(seed), entry, float(limit))))


if __name__ == "__main__":
    main()
