"""The parts of policies with a recurrent network: the option ``model.core``, and the state of each env while acting.

A policy with memory keeps one table for collecting and one for evaluating. Their rows are envs. A row is zero before
the first observation of an episode, so workers need not know about it: they call ``reset`` with the envs where an
episode ended. The table of collecting is part of a checkpoint, see ``collect_memory``.

Shapes: B batch of envs, N envs, S size of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.policy.base.acting import ActionSelector
from lightning_ding.policy.base.config import WITHOUT_SDE
from lightning_ding.utils.modes import IS_FIRST, STATE


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """The recurrent part of a network."""

    type: Literal["lstm", "gru", "gtrxl"] = "lstm"
    """Kind of core: recurrent layers, or a gated transformer with a memory."""
    hidden_size: int = 64
    """Width of a layer, >= 1; even with gtrxl. A transition stores the state, which is 2 hidden_size num_layers
    numbers of an lstm, half of that of a gru, and 1 + memory_length hidden_size num_layers of a gtrxl."""
    num_layers: int = 1
    """Number of layers, >= 1."""
    residual: bool = False
    """Whether the features of the encoder, whose last width is hidden_size then, are added to the layers' outputs."""
    num_heads: int | None = None
    """Attention heads of a layer, >= 1; only with gtrxl, where None means 4."""
    head_size: int | None = None
    """Size of an attention head, >= 1; only with gtrxl, where None means hidden_size / num_heads."""
    memory_length: int | None = None
    """Steps before the present one that each layer attends to, >= 1; only with gtrxl, where None means 32."""
    gate_bias: float | None = None
    """Initial bias of the gates, which are nearer to the identity with a larger one; only with gtrxl, where None means
    2."""

    def __post_init__(self) -> None:
        require(self.hidden_size >= 1, "model.core.hidden_size", ">= 1", self.hidden_size)
        require(self.num_layers >= 1, "model.core.num_layers", ">= 1", self.num_layers)
        is_gtrxl = self.type == "gtrxl"
        require(not (is_gtrxl and self.residual), "model.core.residual", "false with type 'gtrxl'", self.residual)
        for name in ("num_heads", "head_size", "memory_length", "gate_bias"):
            value = getattr(self, name)
            require(is_gtrxl or value is None, f"model.core.{name}", f"None with type {self.type!r}", value)
            in_range = value is None or name == "gate_bias" or value >= 1
            require(in_range, f"model.core.{name}", ">= 1 or None", value)


@dataclass(frozen=True, kw_only=True)
class RecurrentModelConfig:
    """The field of a network's config that makes it recurrent; to be mixed into the config of a network."""

    MOVED: ClassVar[dict[str, str]] = WITHOUT_SDE  # networks without recurrent layers have a hint for ``core`` there

    core: CoreConfig = field(default_factory=CoreConfig)
    """The recurrent layers between the encoder and the heads."""


class EnvStates:
    """The recurrent state of each env, and whether it is the one at the start of an episode.

    Example:
        >>> states = EnvStates()
        >>> states.write(None, torch.ones(3, 2))
        >>> states.reset([1])
        >>> state, is_first = states.read(None, torch.zeros(3, 2))
        >>> state.tolist(), is_first.tolist()
        ([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [False, True, False])
    """

    def __init__(self) -> None:
        self._state: Tensor | None = None  # (N, S)
        self._is_first: Tensor | None = None  # (N,)

    def read(self, env_ids: Sequence[int] | None, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of envs.

        Args:
            env_ids: B envs; None for the envs 0 to B - 1.
            first: States at the start of an episode, shape (B, S), for envs that have none yet.

        Returns:
            States, shape (B, S), and whether each is that at the start of an episode, shape (B,). A later ``reset``
            or ``write`` does not change them.
        """
        state, is_first = self._table(env_ids, first)
        if env_ids is None and len(state) == len(first):
            return state.clone(), is_first.clone()
        rows = slice(len(first)) if env_ids is None else list(env_ids)
        return state[rows].clone(), is_first[rows].clone()

    def write(self, env_ids: Sequence[int] | None, state: Tensor) -> None:
        """Replace the states of envs by those after their observations, shape (B, S)."""
        table, is_first = self._table(env_ids, torch.zeros_like(state))
        rows = slice(len(state)) if env_ids is None else list(env_ids)
        table[rows] = state
        is_first[rows] = False

    def reset(self, env_ids: Sequence[int] | None = None) -> None:
        """Set the states of envs to those at the start of an episode; None means all envs."""
        if self._state is None or self._is_first is None:
            return
        if env_ids is None:
            self._state = self._is_first = None
            return
        known = [env_id for env_id in env_ids if env_id < len(self._state)]
        self._state[known] = 0.0
        self._is_first[known] = True

    def reset_where(self, ended: Tensor) -> None:
        """Set the states of the envs where ``ended`` is true, shape (N,), to those at the start of an episode."""
        if self._state is not None and self._is_first is not None:
            self._state = self._state.masked_fill(ended[:, None], 0.0)
            self._is_first = self._is_first | ended

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the states; None if no env has one."""
        parts = {"state": self._state, "is_first": self._is_first}
        return {name: None if part is None else part.clone() for name, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore what ``state_dict`` returned."""
        self._state, self._is_first = (
            None if state[name] is None else state[name].to(device, copy=True) for name in ("state", "is_first")
        )

    def _table(self, env_ids: Sequence[int] | None, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the table, with a row for each of the envs."""
        size = len(first) if env_ids is None else max(env_ids, default=-1) + 1
        state, is_first = self._state, self._is_first
        if state is None or is_first is None or state.shape[1:] != first.shape[1:]:
            state, is_first = first.new_zeros(0, first.shape[1]), first.new_zeros(0, dtype=torch.bool)
        if state.device != first.device:
            state, is_first = state.to(first.device), is_first.to(first.device)
        if len(state) < size:
            missing = size - len(state)
            state = torch.cat([state, state.new_zeros(missing, state.shape[1])])
            is_first = torch.cat([is_first, is_first.new_ones(missing)])
        self._state, self._is_first = state, is_first
        return state, is_first


class RecurrentSelector(ActionSelector):
    """An :class:`ActionSelector` that says which envs the observations are from."""

    env_ids: list[int] | None = None
    """Envs of the observations that are being acted on; None for 0 to B - 1."""

    def __call__(self, function: Callable[..., Any], obs: Any, device: torch.device | str, /, **kwargs: Any) -> Any:
        """Return the result of ``function`` for observations; see :class:`ActionSelector`."""
        by_env = isinstance(obs, dict) and bool(obs) and isinstance(next(iter(obs)), int)
        self.env_ids = list(obs) if by_env else None
        try:
            return super().__call__(function, obs, device, **kwargs)
        finally:
            self.env_ids = None


PolicyClass = TypeVar("PolicyClass", bound=type)


def act(policy: Any, states: EnvStates, obs: Any) -> dict[str, Any]:
    """Return the network's output for B envs, and keep the state after it.

    Args:
        policy: A policy with memory; its network has ``first_state`` and ``act``, as :class:`DRQN`.
        states: Its table for collecting or for evaluating.
        obs: Nested observations, leading axis B.

    Returns:
        The output of the network, the state before it as ``recurrent_state``, and ``is_first``. To a network without
        memory, whose state has no numbers, each step is the first of an episode.
    """
    env_ids, first = policy._action_selector.env_ids, policy.model.first_state(nested.leaves(obs)[0].shape[0])
    if not first.shape[1]:
        return {**policy.model.act(obs, first), STATE: first, IS_FIRST: first.new_ones(len(first), dtype=torch.bool)}
    state, is_first = states.read(env_ids, first)
    output: dict[str, Any] = policy.model.act(obs, state)
    states.write(env_ids, output["state"])
    return output | {STATE: state, IS_FIRST: is_first}


def with_env_states(policy_class: PolicyClass) -> PolicyClass:
    """Give a policy class a table of states for each way of acting, ``_collecting`` and ``_evaluating``; a decorator.

    Methods that the class itself defines are kept.
    """
    policy_class.has_memory = True  # type: ignore[attr-defined]
    policy_class.compiles_acting = False  # type: ignore[attr-defined]
    methods: dict[str, Any] = {
        "_selector_class": RecurrentSelector,
        "_init_collect": lambda self: self.__dict__.update({"_collecting": EnvStates()} | self.new_memory("collect")),
        "_init_eval": lambda self: self.__dict__.update({"_evaluating": EnvStates()} | self.new_memory("eval")),
        "new_memory": lambda self, way: (
            {"_evaluating" if way == "eval" else "_collecting": EnvStates()}
            if getattr(self.model, "state_size", True)  # 0 of a team's agents without memory
            else {}
        ),
        "_reset_collect": lambda self, data_id=None: self._collecting.reset(data_id),
        "reset_collect_where": lambda self, ended: (
            self._collecting.reset() if ended is None else self._collecting.reset_where(ended)
        ),
        "_reset_eval": lambda self, data_id=None: self._evaluating.reset(data_id),
        "collect_memory": lambda self: self._collecting.state_dict(),
        "load_collect_memory": lambda self, memory: self._collecting.load_state_dict(memory, self.device),
    }
    for name in methods.keys() - vars(policy_class).keys():
        setattr(policy_class, name, methods[name])
    return policy_class


def with_memory(policy_class: PolicyClass) -> PolicyClass:
    """Give a policy class the tables of :func:`with_env_states`, whose rows its transitions store; a decorator.

    The class calls :func:`act` with ``_collecting`` or ``_evaluating``, and its transitions get the columns
    ``recurrent_state`` and ``is_first``. Where actions were random, the network reads the observations nevertheless.
    ``forward`` of the policy keeps no states: it acts as at the start of an episode.
    """
    inherited = policy_class._process_transition  # type: ignore[attr-defined]
    forward_once = policy_class.forward  # type: ignore[attr-defined]

    def process_transition(self: Any, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        if STATE not in output:
            read = self._action_selector(lambda seen: memory_of(act(self, self._collecting, seen)), obs, self.device)
            output = {**output, **read}
        columns: dict[str, Any] = inherited(self, obs, output, timestep)
        return columns | memory_of(output)

    def forward(self: Any, obs: Any) -> Tensor:
        """Return the greedy action for each of B observations, each as the first one of an episode."""
        kept, self._evaluating = vars(self).get("_evaluating"), EnvStates()
        try:
            actions: Tensor = forward_once(self, obs)
        finally:
            self._evaluating = kept
        return actions

    with_env_states(policy_class)
    policy_class.stores_memory = True  # type: ignore[attr-defined]
    policy_class.forward, policy_class._process_transition = forward, process_transition  # type: ignore[attr-defined]
    return policy_class


def memory_of(output: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the columns of a policy with memory."""
    return {name: output[name] for name in (STATE, IS_FIRST)}
