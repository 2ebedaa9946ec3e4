"""Speed and memory of the replay buffers, compared with cpprb and Tianshou.

    python -m benchmarks.buffers      # writes docs/results/buffers.json

Capacity 100,000. CartPole-like transitions of 8 envs are pushed in chunks of 8; then minibatches of 256 are drawn with
importance weights and their priorities updated, and drawn uniformly. Each contestant runs in a separate process with
one thread. All run in turn, three times. The load of a shared machine varies, so a run is timed in pieces, and the
median piece counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.compare import Result, in_turn, medians_of, save

CAPACITY = 100_000
TRANSITIONS = 50_000
ENVS = 8
BATCH_SIZE = 256
BATCHES = 3_000
PIECES = 25  # number of parts into which pushes and batches are divided
OBS = np.random.default_rng(0).normal(size=(TRANSITIONS // ENVS + 1, ENVS, 4)).astype(np.float32)
ENV_ID = np.arange(ENVS)
ACTION, REWARD, ENDED = np.zeros(ENVS, dtype=np.int64), np.ones(ENVS, dtype=np.float32), np.zeros(ENVS, dtype=bool)


class Contestant(Protocol):
    """A prioritised and a uniform buffer."""

    def push(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the prioritised buffer."""
        ...

    def push_uniform(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the uniform buffer."""
        ...

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        ...

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        ...


class Ours:
    """This project."""

    def __init__(self) -> None:
        from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer

        self.buffer = AdvancedReplayBuffer({"replay_buffer_size": CAPACITY}, seed=0)
        self.uniform = NaiveReplayBuffer({"replay_buffer_size": CAPACITY}, seed=0)

    def push(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the prioritised buffer."""
        self.buffer.push(self._transitions(obs, next_obs))

    def push_uniform(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the uniform buffer."""
        self.uniform.push(self._transitions(obs, next_obs))

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        batch = self.buffer.sample(BATCH_SIZE, train_iter)
        self.buffer.update({**batch, "priority": priority})

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)

    def _transitions(self, obs: Any, next_obs: Any) -> dict[str, Any]:
        ends = {"terminated": ENDED, "truncated": ENDED, "env_id": ENV_ID}
        return {"obs": obs, "action": ACTION, "reward": REWARD, "next_obs": next_obs, **ends}


class Cpprb:
    """cpprb, a library in C++."""

    def __init__(self) -> None:
        import cpprb

        columns = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
        self.buffer = cpprb.PrioritizedReplayBuffer(CAPACITY, columns, alpha=0.6)
        self.uniform = cpprb.ReplayBuffer(CAPACITY, columns)
        self.done = ENDED.astype(np.float32)

    def push(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the prioritised buffer."""
        self.buffer.add(obs=obs, act=ACTION, rew=REWARD, next_obs=next_obs, done=self.done)

    def push_uniform(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the uniform buffer."""
        self.uniform.add(obs=obs, act=ACTION, rew=REWARD, next_obs=next_obs, done=self.done)

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        batch = self.buffer.sample(BATCH_SIZE, beta=0.4)
        self.buffer.update_priorities(batch["indexes"], priority)

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)


class Tianshou:
    """Tianshou, whose vector buffers have a part for each env."""

    def __init__(self) -> None:
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

        self.batch = Batch
        self.buffer = PrioritizedVectorReplayBuffer(CAPACITY, ENVS, alpha=0.6, beta=0.4)
        self.uniform = VectorReplayBuffer(CAPACITY, ENVS)

    def push(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the prioritised buffer."""
        self.buffer.add(self._transitions(obs, next_obs))

    def push_uniform(self, obs: Any, next_obs: Any) -> None:
        """Add a transition of every env to the uniform buffer."""
        self.uniform.add(self._transitions(obs, next_obs))

    def learn(self, train_iter: int, priority: Any) -> None:
        """Draw a minibatch with importance weights and update its priorities."""
        _, indices = self.buffer.sample(BATCH_SIZE)
        self.buffer.update_weight(indices, priority)

    def draw(self) -> None:
        """Draw a minibatch uniformly."""
        self.uniform.sample(BATCH_SIZE)

    def _transitions(self, obs: Any, next_obs: Any) -> Any:
        ends: dict[str, Any] = {"terminated": ENDED, "truncated": ENDED, "info": self.batch()}
        return self.batch(obs=obs, act=ACTION, rew=REWARD, obs_next=next_obs, **ends)


CONTESTANTS: dict[str, Callable[[], Contestant]] = {"lightning_ding": Ours, "cpprb": Cpprb, "tianshou": Tianshou}


def run(name: str) -> Result:
    """Return pushes, prioritised and uniform minibatches a second."""
    contestant, rng = CONTESTANTS[name](), np.random.default_rng(1)
    start = time.perf_counter()
    steps = len(OBS) - 1
    for step in range(BATCH_SIZE // ENVS):  # what is made or compiled at the first call is not timed
        contestant.push(OBS[step], OBS[step + 1])
    contestant.learn(0, rng.random(BATCH_SIZE) + 0.01)
    pushes = _rate(steps, lambda step: contestant.push(OBS[step], OBS[step + 1])) * ENVS
    uniform_pushes = _rate(steps, lambda step: contestant.push_uniform(OBS[step], OBS[step + 1])) * ENVS
    batches = _rate(BATCHES, lambda number: contestant.learn(number, rng.random(BATCH_SIZE) + 0.01))
    uniform = _rate(BATCHES, lambda number: contestant.draw())
    seconds = time.perf_counter() - start
    speeds = {"pushes_per_second": pushes, "uniform_pushes_per_second": uniform_pushes}
    speeds |= {"batches_per_second": batches, "uniform_batches_per_second": uniform}
    return {"seconds": seconds, **speeds, **_memory(name)}


def _rate(amount: int, call: Callable[[int], None]) -> float:
    """Return the calls a second of the median piece of so many calls."""
    pieces, size = [], amount // PIECES
    for piece in range(PIECES):
        start = time.perf_counter()
        for number in range(piece * size, piece * size + size):
            call(number)
        pieces.append((time.perf_counter() - start) / size)
    return 1 / statistics.median(pieces)


def _memory(name: str) -> Result:
    """Return the bytes of a full buffer of this project, of those of its columns, next observations included."""
    if name != "lightning_ding":
        return {}
    contestant = Ours()
    for step in range(CAPACITY // ENVS + 1):
        obs, next_obs = OBS[step % (len(OBS) - 1)], OBS[step % (len(OBS) - 1) + 1]
        contestant.push(obs, next_obs)
        contestant.push_uniform(obs, next_obs)
    row = sum(array[0].nbytes for array in contestant._transitions(OBS[0], OBS[1]).values())
    ratios = {"memory_ratio": contestant.buffer.nbytes, "uniform_memory_ratio": contestant.uniform.nbytes}
    return {key: nbytes / (row * CAPACITY) for key, nbytes in ratios.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("docs/results/buffers.json"))
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant and print its result")
    arguments = parser.parse_args()
    if arguments.run is not None:
        torch.set_num_threads(1)
        print(json.dumps(run(arguments.run)))
        return
    for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[library] = "1"
    results = in_turn(["benchmarks.buffers"], list(CONTESTANTS), arguments.repeats)
    medians = medians_of(results)
    shown = [key for key in medians["cpprb"] if key != "seconds"]
    print("\n" + " ".join([f"{'':>14}", *(f"{key:>26}" for key in shown)]))
    for name, row in medians.items():
        print(" ".join([f"{name:>14}", *(f"{row[key]:26,.0f}" for key in shown)]))
    ours = medians["lightning_ding"]
    for key in shown:
        others = max(medians[name][key] for name in ("cpprb", "tianshou"))
        print(f"{key}: {ours[key] / others:.2f} of the faster, {ours[key] / medians['tianshou'][key]:.2f} of Tianshou")
    print(f"memory: {ours['memory_ratio']:.2f} of the columns, uniform {ours['uniform_memory_ratio']:.2f}")
    save(results, arguments.output)


if __name__ == "__main__":
    main()
