"""Collecting in tensor envs: observations, actions and transitions stay on the device of the envs.

A step of this collector reads no number of an env: what it counts is known beforehand, or added up in tensors that are
read when the metrics of a run are written. It is separate from the collectors of arrays, whose checks, faults and
episode statistics read every step.

Shapes: N envs, T steps of a call, S = T N transitions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_ding import nested, rl
from lightning_ding.config import require
from lightning_ding.envs.tensor.batched import BatchedEnv
from lightning_ding.envs.tensor.reader import TensorEnv, TensorStep
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.ranks import rank_and_world_size
from lightning_ding.worker.episodes import EpisodeStatistics
from lightning_ding.worker.tensor_episodes import TensorEpisodes

logger = logging.getLogger(__name__)

LOGGED = ("log", "episode")
"""Entries of an info with numbers for the log, of the envs that were reset (Isaac Lab, rsl_rl)."""


class TensorCollector(EpisodeStatistics):
    """Acts in N tensor envs with a policy, and gives the columns of each step, or a rollout of T steps.

    Its counters have the meaning of those of other collectors. ``episode`` counts the episodes that were reported.

    Args:
        env: The envs.
        policy: The policy; it acts through its collect mode.

    Raises:
        ValueError: If the envs and the policy are on different devices.
    """

    def __init__(self, env: TensorEnv, policy: Any) -> None:
        super().__init__()
        self._env, self._policy = env, policy
        if isinstance(env.env, BatchedEnv):
            env.env.step_eagerly()  # an earlier fit may have compiled its steps
        self._has_warned = self._is_compiled = False
        self._table: Any = None  # columns (T, N, ...) of the last rollout, whose memory the next one uses again

    def reset_env(self) -> None:
        """Start new episodes in all envs."""
        obs = self._env.reset()
        device, num_envs = self._env.device, self._env.num_envs
        own = torch.device(self._policy.device)
        is_other = own.index is not None and device.index is not None and own.index != device.index
        if device.type != own.type or is_other:
            raise ValueError(
                'the envs of mode="tensor" must be on the device of the policy, '
                f"{own}, got {device}: choose it with the accelerator of the Trainer, or with the "
                "device in env_kwargs"
            )
        self._obs = obs
        self._episodes = TensorEpisodes(num_envs, device, self.info_keys)
        self._env_id = torch.arange(num_envs, device=device)
        self._first_episode = torch.full((num_envs,), -(-self.next_episode_id // num_envs), device=device)
        self._policy.reset_collect_where(None)

    # ------------------------------------------------------------------ collecting

    def step(self, random_collect: bool = False, **policy_kwargs: Any) -> tuple[dict[str, Any], TensorStep]:
        """Make one step in all envs; return the columns of N transitions, and the result of the envs' step.

        Args:
            random_collect: Take uniformly random actions, legal ones where the observation has an ``action_mask``.
            policy_kwargs: Arguments of the policy's ``_forward_collect``, such as ``eps``.
        """
        policy = self._policy
        compiler = policy.updater.compiler
        if random_collect:
            output = self._random_output()
        elif compiler is None:
            output = policy._collect(self._obs, **policy_kwargs)
        else:
            output = self._act(compiler, policy_kwargs)
        step = self._env.step(output["action"])
        columns = policy._process_transition(self._env.previous_obs, output, step)
        self._obs = step.obs
        policy.reset_collect_where(step.ended)
        self._log(step.info)
        self.envstep += self._env.num_envs
        return columns, step

    def _act(self, compiler: Any, policy_kwargs: Mapping[str, Any]) -> Any:
        """Act by compiled code, and let envs that can do so step by compiled code as well."""
        if not self._is_compiled and isinstance(self._env.env, BatchedEnv):
            compiler.functions["env"] = self._env.env.compile_steps(compiler.graphs)
        self._is_compiled = True
        return compiler.act(self._obs, policy_kwargs)

    def collect(
        self,
        n_sample: int,
        train_iter: int = 0,
        drop_extra: bool = False,
        random_collect: bool = False,
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a rollout of at least ``n_sample`` transitions, whole steps of all envs, as columns with axis S.

        The rows are in the order of steps, and in a step in that of the envs. The tensors are valid until the next
        call, which writes into the same memory.

        Args:
            n_sample: Number of transitions, >= 1.
            train_iter: Not used.
            drop_extra: Only False: the surplus of the last step is returned.
            random_collect: Take uniformly random actions, as in :meth:`step`.
            policy_kwargs: Arguments of the policy's ``_forward_collect``.

        Raises:
            ValueError: If ``drop_extra`` is set.
        """
        require(not drop_extra, "drop_extra", 'False with mode="tensor"', drop_extra)
        num_envs = self._env.num_envs
        steps = -(-n_sample // num_envs)
        for row in range(steps):
            columns, step = self.step(random_collect, **(policy_kwargs or {}))
            if row == 0:
                self._table = _room(self._table, columns, steps)
            _write(self._table, row, columns)
            self._episodes.note_infos(step)
        table = self._table
        ended = table["terminated"] | table["truncated"]
        self._episodes.add(table["reward"], ended, self.envstep - (steps - 1) * num_envs)
        self.sample += steps * num_envs
        ids = {"env_id": self._env_id.expand(steps, num_envs), "episode_id": self._episode_ids(ended)}
        return {name: nested.apply(_flat, column) for name, column in {**table, **ids}.items()}

    def _random_output(self) -> dict[str, Any]:
        space, env = self._env.single_action_space, self._env
        return {"action": rl.random_tensor_actions(space, env.num_envs, self._obs, env.device)}

    def _episode_ids(self, ended: Tensor) -> Tensor:
        """Return the number of the episode of each step, shape (T, N), for where one ended; no two are the same."""
        num_envs = self._env.num_envs
        before = ended.cumsum(0)
        own = torch.cat([self._first_episode[None], self._first_episode + before[:-1]])
        self._first_episode = self._first_episode + before[-1]
        return own * num_envs + self._env_id

    def _log(self, info: Mapping[str, Any]) -> None:
        """Add the numbers for the log that an env gives to the metrics of collecting."""
        for name in LOGGED:
            numbers = info.get(name)
            if isinstance(numbers, Mapping):
                device = self._env.device
                self._policy.collect_metrics.add(
                    {key: _scalar(one, device) for key, one in numbers.items() if _is_number(one)}
                )

    # ------------------------------------------------------------------ reports

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Raise, because the returns of single episodes are not kept.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError('with mode="tensor" episodes are added up on the device: call pop_episode_sums()')

    def pop_episode_sums(self) -> tuple[float, float, int]:
        """Return the sum of returns, the sum of lengths and the number of the episodes since the last call.

        It reads them from the device, in one transfer for everything that was added up.
        """
        returns, lengths, count, self.infos = self._episodes.pop()
        self.episode += count
        if count and not self._env.gives_final_obs and not self._has_warned:
            self._has_warned = True
            if rank_and_world_size()[0] == 0:
                logger.warning(
                    "%s gives no final observations (info['final_obs']), so episodes that a time limit ends bootstrap "
                    "from their last observation but one", type(self._env.env).__name__,
                )  # fmt: skip
        return returns, lengths, count

    def keep_records(self) -> None:
        """Keep a record of each episode that ends from now on, on the device, for :meth:`pop_records`."""
        self.keeps_records = self._episodes.keeps_records = True

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return ``envstep`` at its end, return and length of each episode since the last call, and NaN for infos."""
        return self._episodes.pop_records()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the next collected data, except that of the envs, as plain data."""
        from lightning_ding.envs.state.codec import to_plain

        under_way = {"obs": self._obs, "first_episode": self._first_episode, "episodes": self._episodes.state_dict()}
        return {"class": type(self).__name__, "counted": to_plain(self.counters()), "under_way": to_plain(under_way)}

    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        """Restore what ``state_dict`` returned.

        Args:
            state: The state.
            continues: Whether the envs continue in the state in which it was saved; otherwise only counters are
                restored.
        """
        from lightning_ding.envs.state.codec import from_plain

        self.load_counters(from_plain(state["counted"]))
        if continues:
            device, under_way = self._env.device, from_plain(state["under_way"])
            self._obs = nested.to(under_way["obs"], device)
            self._first_episode = under_way["first_episode"].to(device)
            self._episodes.load_state_dict(under_way["episodes"])
        else:
            begun = from_plain(state["under_way"])["first_episode"]
            self.skip_episode_ids((int(begun.max()) + 1) * len(begun))


def check_policy(policy: Any, datamodule: Any) -> None:
    """Check that a policy can act in tensor envs and learn from them, with its options and those of a datamodule.

    Raises:
        ValueError: Naming the algorithm or the option, and what is allowed.
    """
    if not policy.supports_tensors:
        known = sorted(
            name for name in POLICY_REGISTRY if getattr(POLICY_REGISTRY.get(name), "supports_tensors", False)
        )
        allowed = f'one of {", ".join(known)}, or a class with supports_tensors, with mode="tensor"'
        require(False, "policy", allowed, type(policy).__name__)
    config = policy.config
    type_, sde = config.collect.collector.type, getattr(config.model, "use_sde", False)
    require(type_ == "sample", "collect.collector.type", '"sample" with mode="tensor"', type_)
    require(not sde, "model.use_sde", 'False with mode="tensor"', sde)
    noisy = getattr(config.model, "noise", False)
    require(not noisy, "model.noise", 'False with mode="tensor"', noisy)
    require(not datamodule.norm_reward, "norm_reward", 'False with mode="tensor"', datamodule.norm_reward)
    kind = config.reward_model.type
    require(kind is None, "reward_model.type", 'None with mode="tensor"', kind)
    if not policy.on_policy:
        from lightning_ding.worker.buffer.tensor import TensorReplayBuffer

        TensorReplayBuffer.check_config(config.other.replay_buffer)
        noise, has_data = (
            getattr(config.collect, "noise_type", "gauss"),
            getattr(datamodule, "dataset", None) is not None,
        )
        require(noise == "gauss", "collect.noise_type", '"gauss" with mode="tensor"', noise)
        require(not has_data, "demonstrations", 'None with mode="tensor"', "a data set")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1)


def _scalar(value: Tensor | float, device: torch.device) -> Tensor:
    """Return a number for the log on the device of the envs, where an env gives it as a tensor in some steps only."""
    return value.to(device, torch.float32) if isinstance(value, Tensor) else torch.full((), value, device=device)


def _room(table: Any, columns: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return columns (T, N, ...) for ``steps`` rows like these: ``table`` if it has this form, else new ones."""
    new = {name: _room_of(column, steps) for name, column in columns.items()}
    return new if table is None or _forms(table) != _forms(new) else table


def _room_of(column: Any, steps: int) -> Any:
    """Return room for the rows of a column; floats are stored in single precision."""
    if isinstance(column, dict):
        return {name: _room_of(below, steps) for name, below in column.items()}
    dtype = torch.float32 if column.is_floating_point() else column.dtype
    return torch.empty((steps, *column.shape), dtype=dtype, device=column.device)


def _forms(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _forms(below) for name, below in data.items()}
    return data.shape, data.dtype, data.device


def _write(table: Any, row: int, columns: Any) -> None:
    for name, column in columns.items():
        if isinstance(column, dict):
            _write(table[name], row, column)
        else:
            table[name][row] = column


def _flat(column: Tensor) -> Tensor:
    return column.flatten(0, 1)
