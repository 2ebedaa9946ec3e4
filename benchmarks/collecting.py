"""Env steps per second of collecting alone, compared with gymnasium, Stable-Baselines3, EnvPool and PufferLib.

    python -m benchmarks.collecting      # writes docs/results/collecting.json

CartPole-v1 in 8, 64 and 256 envs, in one process, in env processes, and as gymnasium's native vector env; an env that
costs nothing and observes 4 x 84 x 84 bytes; and Hopper-v5 in 16 envs, if mujoco is installed. Actions are random,
those of one Q-network ("greedy"), or drawn by the actor and critic of PPO ("ppo", CartPole only, which also computes
log-probabilities and values); networks are the same for all. The contestants other than this project step their envs
in a loop and keep nothing; the collector returns checked transitions, four steps of all envs a call. Hopper is only
stepped, by the stepper of this project, with random actions.
With processes, gymnasium and Stable-Baselines3 have one for each env, PufferLib and this project two.
Each contestant runs in a separate process with one torch thread. All run in turn, three times. The load of a shared
machine varies, so a run is timed in pieces, of which the fastest quarter counts, and seconds are CPU time, except where
envs have processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from benchmarks.bare_ppo import Agent
from benchmarks.compare import Result, in_turn, medians_of, save
from benchmarks.frames_env import makers
from benchmarks.workload import W1, W2

PIECES = 24
SECONDS = 0.6  # of a run's pieces together
CALL = 4  # vector steps of a call of the collector
BASELINE = "gymnasium"
Array = NDArray[Any]


class Case(NamedTuple):
    """An env, the way in which it is stepped, and the choice of actions."""

    env: str
    mode: str
    num_envs: int
    policy: str

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "_".join([self.env, self.mode, str(self.num_envs), self.policy])


ENVS = [("cartpole", mode, number) for mode in ("sync", "native") for number in (8, 64, 256)]
ENVS += [("cartpole", "async", 8), ("frames", "sync", 8), ("frames", "sync", 64), ("frames", "async", 8)]
ENVS += [("cartpole", "async", 64), ("cartpole", "async", 256)]
CASES = {case.name: case for env in ENVS for policy in ("random", "greedy") if (case := Case(*env, policy))}
PPO_CASES = [Case(*env, "ppo") for env in ENVS if env[0] == "cartpole" and env[1] != "async"]
CASES |= {case.name: case for case in PPO_CASES}
HOPPERS = [Case("hopper", mode, number, "random") for mode in ("sync", "async") for number in (16, 64)]
CASES |= {case.name: case for case in HOPPERS}
IDS = {"cartpole": "CartPole-v1", "hopper": "Hopper-v5"}
WORKERS = 2
Run = Callable[[], int]
"""Makes some steps and returns their number, counted over all envs."""


def env_makers(case: Case) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Return a function for each env that makes it."""
    return [lambda: gym.make(IDS[case.env])] * case.num_envs if case.env in IDS else [*makers(case.num_envs)]


def q_policy(case: Case) -> Any:
    """Return the policy, with the network that all contestants use."""
    from lightning_ding.policy import DQNPolicy

    torch.manual_seed(0)
    shapes = (
        {"obs_shape": 4, "action_shape": 2} if case.env == "cartpole" else {"obs_shape": (4, 84, 84), "action_shape": 6}
    )
    sizes = W1.hidden if case.env == "cartpole" else None
    return DQNPolicy({"model": {**shapes, "encoder_hidden_size_list": sizes, "dueling": False}})


def ppo_policy() -> Any:
    """Return PPO with the actor and the critic that all contestants use."""
    from lightning_ding.policy import PPOPolicy

    model = {"action_space": "discrete", "obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": W2.hidden}
    return PPOPolicy({"model": {**model, "activation": "tanh", "share_encoder": False}})


def chooser(case: Case, random: Callable[[], Array]) -> Callable[[Array], Array]:
    """Return a function from observations to actions, for a loop."""
    if case.policy == "random":
        return lambda obs: random()
    if case.policy == "ppo":
        agent = Agent(4, 2, W2.hidden)

        def drawn(obs: Array) -> Array:
            with torch.no_grad():
                return agent.act(torch.from_numpy(obs))[0].numpy()

        return drawn
    network = q_policy(case).model.eval()

    def greedy(obs: Array) -> Array:
        with torch.no_grad():
            actions: Array = network(torch.from_numpy(obs))["logit"].argmax(1).numpy()
            return actions

    return greedy


def stepping(case: Case, envs: Any) -> tuple[Run, Callable[[], None]]:
    """Return a function that steps a vector env with the actions of the case, and one that closes it."""
    envs.action_space.seed(0)
    act, obs = chooser(case, envs.action_space.sample), envs.reset(seed=0)[0]

    def run() -> int:
        nonlocal obs
        for _ in range(CALL):
            obs = envs.step(act(obs))[0]
        return CALL * case.num_envs

    return run, envs.close


def run_gymnasium(case: Case) -> tuple[Run, Callable[[], None]]:
    """Step gymnasium's vector env."""
    same_step: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs: VectorEnv
    if case.mode == "native":
        envs = gym.make_vec("CartPole-v1", case.num_envs, "vector_entry_point")
    elif case.mode == "async":
        envs = AsyncVectorEnv(env_makers(case), **same_step)
    else:
        envs = SyncVectorEnv(env_makers(case), **same_step)
    return stepping(case, envs)


def run_ours(case: Case) -> tuple[Run, Callable[[], None]]:
    """Collect with this project."""
    from lightning_ding.envs import EnvStepper, make_vector_env
    from lightning_ding.worker import create_serial_collector

    env: Any = IDS.get(case.env, {"class_path": "benchmarks.frames_env.PreparedFrames"})
    workers = WORKERS if case.mode == "async" else None
    envs = make_vector_env(env, case.num_envs, case.mode, seed=0, num_workers=workers)  # type: ignore[arg-type]
    if case.env == "hopper":
        stepper = EnvStepper(envs)
        stepper.reset()

        def step() -> int:
            for _ in range(CALL):
                stepper.step(envs.action_space.sample())
            return CALL * case.num_envs

        return step, envs.close
    policy = ppo_policy() if case.policy == "ppo" else q_policy(case)
    collector = create_serial_collector({"type": "sample"}, env=envs, policy=policy.collect_mode)
    amount, is_random = CALL * case.num_envs, case.policy == "random"
    kwargs = {"eps": 0.0} if case.policy == "greedy" else {}

    def run() -> int:
        before = collector.envstep
        collector.collect(amount, random_collect=is_random, policy_kwargs=kwargs)
        collector.pop_episodes()
        return collector.envstep - before

    return run, envs.close


def run_sb3(case: Case) -> tuple[Run, Callable[[], None]]:
    """Step the vector env of Stable-Baselines3."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    start = {"start_method": "fork"} if case.mode == "async" else {}  # the default takes a minute to start eight
    envs = (SubprocVecEnv if case.mode == "async" else DummyVecEnv)(env_makers(case), **start)
    envs.seed(0)
    space = envs.action_space
    act, obs = chooser(case, lambda: np.array([space.sample() for _ in range(case.num_envs)])), envs.reset()

    def run() -> int:
        nonlocal obs
        for _ in range(CALL):
            obs = envs.step(act(obs))[0]
        return CALL * case.num_envs

    return run, envs.close


def run_envpool(case: Case) -> tuple[Run, Callable[[], None]]:
    """Step EnvPool's CartPole."""
    import envpool

    envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=case.num_envs, num_threads=1, seed=0)
    rng = np.random.default_rng(0)
    act, obs = chooser(case, lambda: rng.integers(2, size=case.num_envs)), envs.reset()[0]

    def run() -> int:
        nonlocal obs
        for _ in range(CALL):
            obs = envs.step(act(obs))[0]
        return CALL * case.num_envs

    return run, envs.close


def run_pufferlib(case: Case) -> tuple[Run, Callable[[], None]]:
    """Step PufferLib's vector env of two workers."""
    from pufferlib import emulation, vector

    def make(**arguments: Any) -> Any:
        return emulation.GymnasiumPufferEnv(env_creator=env_makers(case)[0], **arguments)

    envs = vector.make(make, backend=vector.Multiprocessing, num_envs=case.num_envs, num_workers=WORKERS, seed=0)
    return stepping(case, envs)


CONTESTANTS: dict[str, tuple[Callable[[Case], tuple[Run, Callable[[], None]]], Callable[[Case], bool]]] = {
    "gymnasium": (run_gymnasium, lambda case: case.mode != "async" or case.num_envs <= 64),
    "ours": (run_ours, lambda case: True),
    "SB3": (run_sb3, lambda case: case.mode == "sync" or (case.mode == "async" and case.num_envs <= 64)),
    "EnvPool": (run_envpool, lambda case: case.env == "cartpole" and case.mode == "native"),
    "PufferLib": (run_pufferlib, lambda case: case.env != "frames" and case.mode == "async"),
}
"""Each with the cases that it can run."""


def speed(run: Run, clock: Callable[[], float], seconds: float = SECONDS) -> float:
    """Return env steps per second: of pieces that take ``seconds`` together, the fastest quarter's slowest."""
    run()
    start, calls = clock(), 0
    while clock() - start < seconds / 6:
        run()
        calls += 1
    calls = max(1, calls * 6 // PIECES)
    speeds = []
    for _ in range(PIECES):
        start = clock()
        steps = sum(run() for _ in range(calls))
        speeds.append(steps / (clock() - start))
    return float(np.quantile(speeds, 0.75))


def measure(name: str, cases: list[str]) -> Result:
    """Return the env steps per second of a contestant in each case that it can run."""
    torch.set_num_threads(1)
    make, can_run = CONTESTANTS[name]
    start, result = time.perf_counter(), {}
    for case in [CASES[one] for one in cases if can_run(CASES[one])]:
        run, close = make(case)
        result[case.name] = speed(run, time.perf_counter if case.mode == "async" else time.process_time)
        close()
    return {"seconds": time.perf_counter() - start, **result}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=CONTESTANTS, help="run only these; default: all that are installed"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path, default=Path("docs/results/collecting.json"))
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant and print its result")
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(json.dumps(measure(arguments.run, arguments.cases)))
        return
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = "1"
    packages = {"SB3": "stable_baselines3", "EnvPool": "envpool", "PufferLib": "pufferlib"}
    installed = [name for name in CONTESTANTS if importlib.util.find_spec(packages.get(name, "gymnasium"))]
    if importlib.util.find_spec("mujoco") is None:
        arguments.cases = [name for name in arguments.cases if CASES[name].env != "hopper"]
    results = in_turn(
        ["benchmarks.collecting", "--cases", *arguments.cases], arguments.only or installed, arguments.repeats
    )
    report(medians_of(results), arguments.cases)
    save(results, arguments.output, baseline=BASELINE)


def report(medians: dict[str, Result], cases: list[str]) -> None:
    """Print the env steps per second, and the ratio of this project to each of the others."""
    print("\n" + " ".join([f"{'env steps/s':>24}", *(f"{name:>12}" for name in medians), "  ours to the others"]))
    for case in cases:
        row = {name: values.get(case) for name, values in medians.items()}
        shown = [f"{'' if value is None else format(value, ',.0f'):>12}" for value in row.values()]
        ours = row.get("ours")
        ratios = [f"{name} {ours / value:.2f}" for name, value in row.items() if value and ours and name != "ours"]
        print(" ".join([f"{case:>24}", *shown, " ", ", ".join(ratios)]))


if __name__ == "__main__":
    main()
