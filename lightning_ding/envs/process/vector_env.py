"""A vector env whose envs run in processes of their own, and which survives what they do.

Shapes: N envs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.process.arguments import OnEnvError, check_arguments, seeds_of, start_method, without_mask
from lightning_ding.envs.process.group import EnvProcesses
from lightning_ding.envs.process.life import close_at_exit
from lightning_ding.envs.process.link import EnvProcess
from lightning_ding.envs.process.results import Observations, outcomes, put_actions
from lightning_ding.envs.process.space import layout_of
from lightning_ding.envs.process.supervisor import Supervisor

Info = dict[str, Any]
Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]


class ProcessVectorEnv(VectorEnv[Any, Any, Any]):
    """Steps envs in processes of their own, with the results of a ``SyncVectorEnv``.

    Observations, actions, rewards and ends lie in memory that each process shares with this one alone; what has no
    fixed size goes through a pipe. Every wait has a deadline, and the end of a process is seen at once. The processes
    die with this one, however it dies. Ctrl-C goes to this one alone, and SIGUSR1 makes them show their stacks.

    What goes wrong in an env is raised as an ``EnvProcessError`` that names the env. Behind an exception of an env
    ``reset`` goes on. Where a process died, or gave no answer in time and was killed, all of them are ended and
    ``close`` is all that is left. With ``on_env_error="restart"`` neither is raised from ``reset`` and ``step``, but
    the process is replaced. A reset is then tried again. A step ends the episode of each env in that process as
    ``FaultBarrier`` does, with the last good observation, reward 0, ``truncated`` and ``{"abnormal": True, "fault":
    "..."}``, in ``final_info`` with SAME_STEP; the other envs keep their results. A new env has the attributes that
    ``set_attr`` has set. Its first reset, if it comes without a seed, has the k-th of its own for the k-th fault since
    the env was reset with ``seed``: ``SeedSequence(seed, spawn_key=(k,)).generate_state(1)[0]``, and a random one if it
    never was.

    Args:
        env_fns: What makes the envs; sent to the processes by cloudpickle.
        autoreset_mode: When an env whose episode ended is reset.
        copy: Whether observations are the caller's own, and not written into by the next step.
        envs_per_process: How many envs share a process, and their faults; >= 1.
        reset_timeout: Seconds for an answer to ``reset``, for making the envs of a process, for ``call`` and its
            like, and for the reset that an autoreset step leads to; > 0, None for no limit.
        step_timeout: Seconds for an answer to ``step``; > 0, None for no limit.
        close_timeout: Seconds for closing the envs; then their processes are killed; > 0.
        on_env_error: What becomes of an env that fails in ``reset`` or ``step``.
        restart_budget: Faults of an env without a whole episode between that are survived; >= 0. The next is raised.
        context: How processes are started, as in ``multiprocessing``; None is ``"forkserver"`` where there is one. The
            processes do not import the main script; what it defines is sent to them by value.

    Raises:
        ValueError: If an argument is out of its range.
        EnvProcessError: If an env cannot be made, or has other spaces than the first.

    Example:
        >>> envs = ProcessVectorEnv([lambda: gym.make("CartPole-v1")] * 2, context="fork")
        >>> envs.reset(seed=0)[0].shape
        (2, 4)
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        copy: bool = True,
        envs_per_process: int = 1,
        reset_timeout: float | None = 120.0,
        step_timeout: float | None = 60.0,
        close_timeout: float = 5.0,
        on_env_error: OnEnvError = "raise",
        restart_budget: int = 10,
        context: Literal["forkserver", "spawn", "fork"] | None = None,
    ) -> None:
        self.closed = True  # until there is something to close
        timeouts = {"reset_timeout": reset_timeout, "step_timeout": step_timeout, "close_timeout": close_timeout}
        check_arguments(len(env_fns), envs_per_process, on_env_error, restart_budget, timeouts)
        method = start_method(context)
        self.num_envs, self.copy = len(env_fns), copy
        self.on_env_error, self.autoreset_mode = on_env_error, AutoresetMode(autoreset_mode)
        self._reset_timeout, self._step_timeout, self._close_timeout = reset_timeout, step_timeout, close_timeout
        self._owner = os.getpid()
        self._processes = EnvProcesses(env_fns, envs_per_process, self.autoreset_mode, method, reset_timeout)
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = self._processes.start()
        self.closed = False
        close_at_exit(self)
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._actions = layout_of(self.single_action_space)
        self._observations = Observations(self.single_observation_space, self.num_envs)
        self._supervisor = Supervisor(self._processes, self.num_envs, on_env_error, restart_budget, reset_timeout)
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._is_reset = False

    @property
    def faults(self) -> NDArray[np.int64]:
        """How many faults each env has had that were survived, shape (N,)."""
        return self._supervisor.faults.total.copy()

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the envs, a tuple."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # of VectorEnv it can be set
    def np_random(self) -> Any:
        """Copies of the random generators of the envs, a tuple."""
        return self.get_attr("np_random")

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset all envs, or those where ``options["reset_mask"]`` is true.

        Args:
            seed: For the first env, the next one has one more and so on; or a list with one for each env, None where it
                goes on with its stream; or None for all.
            options: What the envs know; with ``reset_mask``, a boolean array of shape (N,), beside it.

        Raises:
            ValueError: If the seeds or the mask do not fit.
            EnvProcessError: If an env fails.
        """
        self._check_running()
        seeds = seeds_of(seed, self.num_envs)
        options, mask = without_mask(options, self.num_envs)
        chosen = [int(env_id) for env_id in np.flatnonzero(mask)]
        self._supervisor.reset(chosen, seeds, options)
        self._ended[mask], self._is_reset = False, True
        processes = [process for process in self._processes.all if mask[process.rows].any()]
        self._observations.take_some(processes, chosen)
        return self._observations.batch(self.copy), self._infos(processes, {})

    def step(self, actions: Any) -> Step:
        """Step all envs.

        Args:
            actions: In ``action_space``.

        Raises:
            EnvProcessError: If an env fails.
            RuntimeError: Without autoreset, if the episode of an env has ended and it was not reset.
        """
        self._check_running()
        self._check_steppable()
        failed = self._supervisor.step(actions, self._request(actions), (self._step_timeout, self._reset_timeout))
        same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        faults = self._observations.of_faults(failed, same_step)
        if failed:
            self._supervisor.survive(failed, list(faults) if same_step else [])
        processes = self._processes.all
        self._observations.take([one for one in processes if same_step or one.env_ids[0] not in faults])
        reward, terminated, truncated = outcomes(processes)
        self._ended = terminated | truncated
        self._supervisor.faults.ended(self._ended)
        if faults:
            truncated[list(faults)] = self._ended[list(faults)] = True
        return self._observations.batch(self.copy), reward, terminated, truncated, self._infos(processes, faults)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return what a method of each env answers, or an attribute of each; results are pickled.

        Raises:
            EnvProcessError: If an env fails.
        """
        self._check_running()
        self._supervisor.ask_all(f"call({name!r})", [("call", name, args, kwargs)] * len(self._processes.all))
        return tuple(answer for process in self._processes.all for answer in process.answer)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env.

        Args:
            name: Of the attribute.
            values: A list or tuple with one for each env, or one for all.

        Raises:
            ValueError: If there are too few values, or too many.
            EnvProcessError: If an env fails. With ``on_env_error="restart"`` one that died is no error: who takes its
                place at the next step is given the attribute.
        """
        values = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        require(len(values) == self.num_envs, "values", f"{self.num_envs}, one for each env", len(values))
        self._check_running()
        requests = [("set_attr", name, values[process.rows]) for process in self._processes.all]
        self._supervisor.ask_all(f"set_attr({name!r})", requests, can_wait=True)
        self._processes.remember(name, values)

    def render(self) -> tuple[Any, ...]:
        """Return the frame of each env."""
        return self.call("render")

    def close_extras(self) -> None:
        """Close the envs and end their processes, within about twice ``close_timeout``."""
        if os.getpid() == self._owner:  # a fork of this process has no children to end
            self._processes.close(self._close_timeout)

    def _request(self, actions: Any) -> list[Any] | None:
        """Put actions into the shared memory, or return them env by env if they are not what the space says."""
        leaves = None if self._actions is None else self._actions.split_exact(actions, self.num_envs)
        if leaves is None:
            rows = list(iterate(self.action_space, actions))
            require(len(rows) == self.num_envs, "actions", f"{self.num_envs}, one for each env", len(rows))
            return rows
        put_actions(self._processes.all, leaves)
        return None

    def _infos(self, processes: Sequence[EnvProcess], faults: dict[int, Info]) -> Info:
        infos: Info = {}
        for env_id, info in faults.items():
            infos = self._add_info(infos, info, env_id)
        for process in processes:
            for number, _, info, final in process.answer or ():
                env_id = process.env_ids[number]
                if final is not None:
                    infos = self._add_info(infos, {"final_obs": final[0], "final_info": final[1]}, env_id)
                infos = self._add_info(infos, info, env_id)
        return infos

    def _check_running(self) -> None:
        if self.closed or self._processes.are_over:
            raise ClosedEnvironmentError(f"{self} is closed, or an env failed so that it had to be")
        self._supervisor.settle()

    def _check_steppable(self) -> None:
        if not self._is_reset:
            raise ResetNeeded("call reset() before step()")
        if self.autoreset_mode == AutoresetMode.DISABLED and self._ended.any():
            ended = np.flatnonzero(self._ended).tolist()
            raise RuntimeError(f"without autoreset, envs whose episode ended must be reset before they step: {ended}")
