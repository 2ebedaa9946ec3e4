"""A vector env whose envs run in separate processes, and which can replace processes that fail.

Shapes: N envs.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.envs.answers import layout_of
from lightning_ding.envs.infos import FINAL_OBS, columns_of, join_infos
from lightning_ding.envs.process.env_process import EnvProcess
from lightning_ding.envs.process.errors import OnEnvError
from lightning_ding.envs.process.lifeline import close_at_exit
from lightning_ding.envs.process.processes import EnvProcesses
from lightning_ding.envs.process.supervisor import ProcessSupervisor
from lightning_ding.envs.state.codec import from_plain, to_plain
from lightning_ding.envs.sync import SettableEnvs, check_workers, seeds_of, without_mask
from lightning_ding.utils.posix import require_posix

Info = dict[str, Any]
Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]


class ProcessVectorEnv(SettableEnvs):
    """Steps envs in separate processes, with the same results as a ``SyncVectorEnv``.

    Observations, actions, rewards and ends of episodes are in memory that each process shares only with the main
    process; elements without a fixed size go through a pipe. Every wait has a time limit, and the death of a process is
    noticed immediately. The processes end with the main process, however it ends. Ctrl-C reaches only the main process,
    and SIGUSR1 makes an env process print its stacks.

    The failure of an env is raised as an ``EnvProcessError`` that names the env. After an exception of an env,
    ``reset`` starts new episodes. If a process died, or was killed because it did not answer in time, all processes are
    ended, and the vector env can only be closed.

    With ``on_env_error="restart"``, ``reset`` and ``step`` do not raise, and a process that failed is replaced. A reset
    is repeated. A step ends the episode of each env in the failed process as ``FaultBarrier`` does: with the last valid
    observation, reward 0, ``truncated`` and the info ``{"abnormal": True, "fault": "..."}``, which is in ``final_info``
    in the mode SAME_STEP. The results of the other envs are unchanged. The new envs get what ``set_attr``,
    ``configure`` and ``set_reset_options`` have set. If the first reset of a new env has no seed, its seed is derived
    from the last seed of the env and the number k of faults since then,
    ``SeedSequence(seed, spawn_key=(k,)).generate_state(1)[0]``; without any seed it is random. A failure is handled
    within its time limit and the time that a new process takes to start; a new process that does not answer in time
    either is raised.

    Args:
        env_fns: Functions that create the envs; they are sent to the processes by cloudpickle.
        autoreset_mode: Gymnasium's autoreset mode, which defines when an env is reset after the end of an episode.
        copy: Return copies of observations, which the next step does not overwrite.
        num_workers: Number of processes, which step their envs one after another; from 1 to the number of envs. None
            means as many as this process may use cores.
        reset_timeout: Seconds for the reset of an env, for creating it, and for ``call`` and similar methods; > 0, None
            for no limit.
        step_timeout: Seconds for the step of an env; > 0, None for no limit.
        close_timeout: Seconds for closing the envs, after which their processes are killed; > 0.
        on_env_error: ``"raise"`` raises a failure in ``reset`` or ``step``, ``"restart"`` replaces the process.
        restart_budget: Maximum number of faults of an env without a complete episode between them, >= 0. The next fault
            is raised.
        context: Start method as in ``multiprocessing``; None means ``"forkserver"`` where it is available. The
            processes do not import the main script; its objects are sent to them by value.

    Raises:
        ValueError: If an argument is out of its range.
        EnvProcessError: If an env cannot be created, or its spaces differ from those of the first.

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
        num_workers: int | None = None,
        reset_timeout: float | None = 120.0,
        step_timeout: float | None = 60.0,
        close_timeout: float = 5.0,
        on_env_error: OnEnvError = "raise",
        restart_budget: int = 10,
        context: Literal["forkserver", "spawn", "fork"] | None = None,
    ) -> None:
        self.closed = True  # until there are processes to close
        timeouts = {"reset_timeout": reset_timeout, "step_timeout": step_timeout, "close_timeout": close_timeout}
        check_arguments(len(env_fns), on_env_error, restart_budget, timeouts)
        workers = check_workers(num_workers, len(env_fns))
        method = start_method(context)
        self.num_envs, self.copy = len(env_fns), copy
        self.on_env_error, self.autoreset_mode = on_env_error, AutoresetMode(autoreset_mode)
        self._reset_timeout, self._step_timeout, self._close_timeout = reset_timeout, step_timeout, close_timeout
        self._owner = os.getpid()
        self._processes = EnvProcesses(env_fns, workers, self.autoreset_mode, method, reset_timeout)
        first = self._processes.start()
        self.single_observation_space, self.single_action_space, metadata, self.render_mode, self.env_name = first
        self.closed = False
        close_at_exit(self)
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._actions = layout_of(self.single_action_space)
        self._observations = Observations(self.single_observation_space, self.num_envs)
        self._supervisor = ProcessSupervisor(
            self._processes, self.num_envs, on_env_error, restart_budget, reset_timeout
        )
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._is_reset = False
        self._is_sent = False  # whether the envs got actions, and the caller has not read what came of them
        self._early: Step | None = None  # what came of them, if it was read before the caller asked for it
        self.lost_variables: list[str] = []
        """The parts that the last state of ``state_dict`` cannot contain, see ``envs.state.state.env_state``."""

    @property
    def faults(self) -> NDArray[np.int64]:
        """Number of handled faults of each env, shape (N,)."""
        return self._supervisor.faults.total.copy()

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the envs, a tuple."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # VectorEnv has a setter
    def np_random(self) -> Any:
        """Copies of the random generators of the envs, a tuple."""
        return self.get_attr("np_random")

    def in_progress(self) -> str | None:
        """Return which envs have not answered a request yet, or None. Any thread may call this."""
        if self._is_sent:  # nobody waits for them
            return None
        pending = [env_id for process in self._processes.all if process.is_pending for env_id in process.env_ids]
        return f"envs {pending}, {self.env_name}, in their processes" if pending else None

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset all envs, or those where ``options["reset_mask"]``, a boolean array of shape (N,), is true."""
        if self._is_sent and "reset_mask" not in (options or {}):  # the episodes end, and with them the step
            self._is_sent, self._early = False, None
        self._check_running()
        seeds = seeds_of(seed, self.num_envs)
        options, mask = without_mask(options, self.num_envs)
        chosen = [int(env_id) for env_id in np.flatnonzero(mask)]
        self._supervisor.reset(chosen, seeds, options)
        self._ended[mask], self._is_reset = False, True
        processes = [process for process in self._processes.all if mask[process.rows].any()]
        self._observations.take_some(processes, chosen)
        return self._observations.batch(self.copy), self._infos(processes, {})

    def send(self, actions: Any) -> None:
        """Give all envs their actions, and return at once; the next :meth:`step` waits for the results.

        A method of the envs that is called before that waits for the end of their step.
        """
        if self._is_sent:
            raise RuntimeError("the envs have got their actions: call step() to read the results")
        self._check_running()
        if not self._is_reset:
            raise ResetNeeded("call reset() before step()")
        if self.autoreset_mode == AutoresetMode.DISABLED and self._ended.any():
            ended = np.flatnonzero(self._ended).tolist()
            raise RuntimeError(f"without autoreset, envs whose episode ended must be reset before they step: {ended}")
        rows, layout = None, self._actions
        leaves = None if layout is None else layout.split_exact(actions, self.num_envs)
        if leaves is None:  # they do not fit into the shared memory
            rows = list(iterate(self.action_space, actions))
            require(len(rows) == self.num_envs, "actions", f"{self.num_envs}, one for each env", len(rows))
        else:
            for process in self._processes.all:
                for column, leaf in zip(process.block.action if process.block else [], leaves, strict=False):
                    column[...] = leaf[process.rows]
        self._supervisor.send_step(actions, rows)
        self._is_sent = True

    def step(self, actions: Any) -> Step:
        """Step all envs, with the actions that :meth:`send` has given them, if it was called before."""
        if not self._is_sent:
            self.send(actions)
        elif self.closed or self._processes.is_closed:
            raise ClosedEnvironmentError(f"{self} was closed after its envs got their actions")
        elif self._early is not None:
            early, self._early, self._is_sent = self._early, None, False
            return early
        self._is_sent = False
        limits = self._step_timeout, self._reset_timeout
        failed = self._processes.gather(self._processes.all, limits, self._supervisor.give_up_on)
        same_step = self.autoreset_mode == AutoresetMode.SAME_STEP
        faults = self._observations.fault_infos(failed, same_step)
        if failed:
            self._supervisor.recover(failed, list(faults) if same_step else [])
        processes = self._processes.all
        self._observations.take([one for one in processes if same_step or one.env_ids[0] not in faults])
        reward, terminated, truncated = outcomes(processes)
        self._ended = terminated | truncated
        self._supervisor.faults.ended(self._ended)
        if faults:
            truncated[list(faults)] = self._ended[list(faults)] = True
        return self._observations.batch(self.copy), reward, terminated, truncated, self._infos(processes, faults)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the result of a method of each env, or an attribute of each env; results are pickled."""
        self._check_running()
        self._supervisor.ask_all(f"call({name!r})", [("call", name, args, kwargs)] * len(self._processes.all))
        return tuple(answer for process in self._processes.all for answer in process.answer)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each env, from a list or tuple with a value for each env, or one value for all.

        With ``on_env_error="restart"``, a dead process is not an error: its replacement gets the attribute.
        """
        values = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        require(len(values) == self.num_envs, "values", f"{self.num_envs}, one for each env", len(values))
        self._set(f"set_attr({name!r})", [("set_attr", name, values[rows]) for rows in self._rows()])

    def configure(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each env that sets something.

        With ``on_env_error="restart"``, a replacement gets the last call of each method.
        """
        self._set(f"configure({name!r})", [("configure", name, args, kwargs) for _ in self._rows()])

    def set_reset_options(self, options: Info | None) -> None:
        """Set options that all following resets of each env get, also those of replacements; None for none."""
        self._set("set_reset_options()", [("set_reset_options", options) for _ in self._rows()])

    def has_attr(self, name: str) -> bool:
        """Return whether each env has an attribute; processes that wait for their replacement do not count."""
        self._check_running()
        requests: list[tuple[Any, ...]] = [("call", "has_wrapper_attr", (name,), {}) for _ in self._rows()]
        self._supervisor.ask_all(f"has_attr({name!r})", requests, can_wait=True)
        return all(all(one.answer or ()) for one in self._processes.all if one.failure is None)

    def state_dict(self) -> Info:
        """Return the state of the envs, which their processes read, and of this object: plain data.

        Raises:
            NotPlainError: If the state of an env cannot be read, or a process has failed and will be replaced.
        """
        self._check_running()
        processes = self._supervisor.states()
        self.lost_variables = sorted({text for one in processes for text in one["lost"]})
        state = {"processes": processes, "faults": self._supervisor.faults.state_dict()}
        state |= {"ended": self._ended.copy(), "observations": self._observations.state()}
        return {**state, "settings": self._processes.settings, "actions": to_plain(self.action_space)}

    def load_state_dict(self, state: Info) -> None:
        """Restore the state that ``state_dict`` returned, after a reset.

        Raises:
            NotPlainError: If the state belongs to different envs. The envs must be reset then.
        """
        self._check_running()
        self._supervisor.load_states(state["processes"])
        self._supervisor.faults.load_state_dict(state["faults"])
        self._observations.load(state["observations"])
        self._ended[:] = state["ended"]
        self._processes.settings = dict(state.get("settings", {}))
        for name, values in state.get("attributes", {}).items():  # in states of older versions
            self._processes.settings[f"set_attr({name!r})"] = [
                ("set_attr", name, values[rows]) for rows in self._rows()
            ]
        from_plain(state["actions"], self.action_space)

    def render(self) -> tuple[Any, ...]:
        """Return the frame of each env."""
        return self.call("render")

    def render_one(self, env_id: int) -> Any:
        """Return the frame of one env; the other processes are not asked."""
        self._check_running()
        processes = self._processes.all
        (own,) = [process for process in processes if env_id in process.env_ids]
        self._supervisor.ask_all("render()", [("call", "render", (), {}) if one is own else None for one in processes])
        return own.answer[list(own.env_ids).index(env_id)]

    def close_extras(self) -> None:
        """Close the envs and end their processes, within about twice ``close_timeout``."""
        if os.getpid() == self._owner:  # a fork of this process does not own the env processes
            self._processes.close(self._close_timeout)

    def _rows(self) -> list[slice]:
        """Return the envs of each process."""
        return [process.rows for process in self._processes.all]

    def _set(self, operation: str, requests: list[tuple[Any, ...]]) -> None:
        """Send a request to each process, now and to its replacements."""
        self._check_running()
        self._supervisor.ask_all(operation, requests, can_wait=True)
        self._processes.settings.pop(operation, None)
        self._processes.settings[operation] = requests

    def _infos(self, processes: Sequence[EnvProcess], faults: dict[int, Info]) -> Info:
        """Return the infos of all envs, and of the envs with a fault."""
        parts = [part for process in processes if process.answer is not None for part in process.answer[0]]
        return join_infos([*parts, columns_of(faults)] if faults else parts, self.num_envs)

    def _check_running(self) -> None:
        if self.closed or self._processes.is_closed:
            raise ClosedEnvironmentError(f"{self} is closed, or was ended because a process failed")
        if self._is_sent and self._early is None:
            self._early, self._is_sent = self.step(None), True
        self._supervisor.finish_pending()


def start_method(name: str | None) -> str:
    """Return the start method of processes, the best one for None; raise ``ValueError`` if the system lacks it."""
    require_posix('mode="async"', 'mode="sync"')
    known = multiprocessing.get_all_start_methods()
    name = name or ("forkserver" if "forkserver" in known else "spawn")
    require(name in known, "context", f"one of {known}", name)
    return name


def check_arguments(
    num_envs: int, on_env_error: str, restart_budget: int, timeouts: Mapping[str, float | None]
) -> None:
    """Raise ``ValueError`` for an argument of ``ProcessVectorEnv`` that is out of its range."""
    require(num_envs >= 1, "env_fns", "one or more functions", num_envs)
    require(on_env_error in get_args(OnEnvError), "on_env_error", f"one of {get_args(OnEnvError)}", on_env_error)
    require(restart_budget >= 0, "restart_budget", ">= 0", restart_budget)
    for name, seconds in timeouts.items():
        if name == "close_timeout":
            require(seconds is not None and seconds > 0, name, "> 0", seconds)
        else:
            require(seconds is None or seconds > 0, name, "> 0 or None", seconds)


class Observations:
    """The last valid observations of N envs, from the observation space of one env."""

    def __init__(self, space: Any, num_envs: int) -> None:
        self._space = space
        self._layout = layout_of(space)
        self._batch: Any = create_empty_array(space, n=num_envs)
        self._leaves: list[NDArray[Any]] = [] if self._layout is None else self._layout.split(self._batch)
        self._items: list[Any] = [None] * num_envs

    def take(self, processes: Sequence[EnvProcess]) -> None:
        """Copy the observations of all envs of the given processes."""
        for process in processes:
            self._take(process, process.rows)

    def take_some(self, processes: Sequence[EnvProcess], env_ids: Sequence[int]) -> None:
        """Copy the observations of the given envs, which are in the given processes."""
        for process in processes:
            for env_id in env_ids:
                if env_id in process.env_ids:
                    self._take(process, slice(env_id, env_id + 1))

    def batch(self, is_copy: bool) -> Any:
        """Return the observations of all envs, as a copy or as the memory that the next step overwrites."""
        if self._layout is None:
            self._batch = concatenate(self._space, self._items, self._batch)
        return deepcopy(self._batch) if is_copy else self._batch

    def of(self, env_id: int) -> Any:
        """Return a copy of the observation of one env."""
        if self._layout is None:
            return deepcopy(self._items[env_id])
        return self._layout.join([leaf[env_id].copy() for leaf in self._leaves])

    def state(self) -> Any:
        """Return a copy of all observations."""
        return deepcopy(self._items if self._layout is None else self._batch)

    def load(self, state: Any) -> None:
        """Restore what ``state`` returned."""
        if self._layout is None:
            self._items = list(state)
            return
        for leaf, saved in zip(self._leaves, self._layout.split(state), strict=True):
            leaf[...] = saved

    def fault_infos(self, failed: Sequence[EnvProcess], are_final: bool) -> dict[int, dict[str, Any]]:
        """Return by env the info of a fault that ends its episode, as ``final_info`` if ``are_final``."""
        faults: dict[int, dict[str, Any]] = {}
        for process in failed:
            for env_id in process.env_ids:
                fault = {"abnormal": True, "fault": process.failure.fault_of(env_id) if process.failure else ""}
                final = {FINAL_OBS: self.of(env_id), "final_info": fault}
                faults[env_id] = final if are_final else fault
        return faults

    def _take(self, process: EnvProcess, rows: slice) -> None:
        assert process.block is not None
        first = process.env_ids.start
        for leaf, column in zip(self._leaves, process.block.obs, strict=True):
            leaf[rows] = column[rows.start - first : rows.stop - first]
        if self._layout is None:
            self._items[rows] = process.answer[1][rows.start - first : rows.stop - first]


def outcomes(processes: Sequence[EnvProcess]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return ``reward``, ``terminated`` and ``truncated`` of the last step, each of shape (N,)."""
    blocks = [process.block for process in processes if process.block is not None]
    reward = np.concatenate([block.reward for block in blocks])
    terminated = np.concatenate([block.terminated for block in blocks])
    return reward, terminated, np.concatenate([block.truncated for block in blocks])
