"""Export of a policy's greedy actions as one graph: normaliser, network, choice of the action, and its scaling.

Inputs are the entries of an observation, ``obs`` or ``obs/entry``, in the types of the observation space, where float64
becomes float32, unless the policy normalises observations whose variation that would lose. Outputs are ``action``, or
``action/entry`` of a hybrid one, in the type and within the bounds of the action space. A recurrent policy has the
input ``state``, which is zero at the start of an episode, and the output ``next_state``. The leading axis B of
everything is dynamic.

Shapes: B batch, S size of a recurrent state.
"""

from __future__ import annotations

import copy
import importlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.layers import InEvalMode
from lightning_ding.policy.base.predict import spaces_of_policy
from lightning_ding.policy.base.recurrent import EnvStates
from lightning_ding.policy.base.weights_file import write_weights
from lightning_ding.rl import discrete_counts
from lightning_ding.utils.private_api import MODULE_DICTS
from lightning_ding.utils.teams import ACTION_MASK, AGENT_STATE, ALIVE

Format = Literal["onnx", "torch_export", "safetensors"]
STATE, NEXT_STATE = "state", "next_state"
EXAMPLE_SIZE = 3
"""Batch size of the example that a graph is recorded with."""


def export(policy: Any, path: str | os.PathLike[str], format: Format = "onnx", agent: int | None = None) -> Path:
    """Write a policy for use elsewhere, and return the path.

    Args:
        policy: A policy that knows the spaces of its env.
        path: The file; its folder is made.
        format: ``onnx`` and ``torch_export`` write the graph of greedy actions, see :mod:`export`, for ONNX Runtime
            (extra ``onnx``) and for ``torch.export.load``. ``safetensors`` writes the weights for acting with the
            config and the spaces, which :func:`load_policy` reads.
        agent: Number of the agent of a team whose actions a graph has, see :class:`AgentGraph`; None for all agents.

    Raises:
        ValueError: If there is no such format, or the policy cannot be written as a graph.
        RuntimeError: If the policy does not know the spaces of its env.
        ImportError: If the extra ``onnx`` is needed and not installed.
    """
    writers = {"onnx": _write_onnx, "torch_export": _write_torch_export}
    require(format in (*writers, "safetensors"), "format", f"one of {[*writers, 'safetensors']}", format)
    require(agent is None or format in writers, "agent", "None with safetensors, which has the whole policy", agent)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if format in writers:
        writers[format](ActionGraph(policy) if agent is None else AgentGraph(policy, agent), target)
    else:
        write_weights(policy, target)
    return target


class ActionGraph(nn.Module):
    """Maps the tensors of observations to those of actions, all flat, so that a graph of it can be recorded.

    Args:
        policy: A policy that knows the spaces of its env. If it is not on the CPU, the graph holds a copy that is.

    Raises:
        ValueError: If the policy has a dict ``config``, or its memory is not a recurrent state.
        RuntimeError: If the policy does not know the spaces of its env.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        observation_space, self.action_space = spaces_of_policy(policy)
        memory, name = policy.new_memory("eval"), type(policy).__name__
        require(
            not policy.has_dict_config, "policy", "one of this package's algorithms, to be written as a graph", name
        )
        fits = all(isinstance(one, EnvStates) for one in memory.values())
        way = "; policy.actor() keeps the last steps that others act on, and format='safetensors' writes them"
        require(fits, "policy", f"one whose memory, if any, is a recurrent state, to be written as a graph{way}", name)
        policy = policy if policy.device.type == "cpu" else _copy_on_cpu(policy)
        self.memory_name = next(iter(memory), None)
        self._policy = [policy]  # in a list, so that target networks and rewards are no part of the graph
        self.model, self.normaliser = policy.model, policy.normaliser
        self.bounds = next((one for one in (_module(policy, "action_bounds"), _module(policy, "bounds")) if one), None)
        self.keeps_double: bool = self.normaliser.needs_double
        self.examples = nested.apply(self._as_input, _examples(observation_space))
        state = None if self.memory_name is None else policy.model.first_state(EXAMPLE_SIZE).detach()
        if state is not None and state.shape[1]:  # agents of a team may have no memory
            self.examples[STATE] = state
        space = self.action_space
        names = [f"action/{name}" for name in space.spaces] if isinstance(space, spaces.Dict) else ["action"]
        self.outputs = [*names, *([NEXT_STATE] if STATE in self.examples else [])]

    def _as_input(self, x: Tensor) -> Tensor:
        """Return numbers of double precision in single precision, unless the observations that were seen need it."""
        return x.float() if x.dtype == torch.float64 and not self.keeps_double else x

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of ``outputs`` for those of ``examples``, in this order."""
        (policy,) = self._policy
        given = dict(zip(self.examples, inputs, strict=True))
        state = _GivenState(given.pop(STATE, None))
        single = {name: _as_single(self._as_input(value)) for name, value in given.items()}
        obs: Any = nested.unflatten(single)["obs"]
        act = getattr(policy, "_forward_greedy", policy._forward_eval)
        with _memory(policy, self.memory_name, state):
            action = act(self.normaliser.normalise_obs(obs))["action"]
        actions = _actions(action, self.action_space)
        return (*actions, cast(Tensor, state.after)) if NEXT_STATE in self.outputs else tuple(actions)


class AgentGraph(nn.Module):
    """Maps what one agent of a team sees, and which of its actions are legal, to its actions.

    Inputs are ``obs`` (B, D), ``action_mask`` (B, A) if the team has one, and ``state`` if the agents have a memory.
    The graph evaluates the whole team; what its other agents see is zero, as agents act on what they see themselves.

    Args:
        policy: The policy of a team that knows the spaces of its env.
        agent: Number of the agent, counted from 0.

    Raises:
        ValueError: If the policy has no such agent, or as :class:`ActionGraph` says.
    """

    def __init__(self, policy: Any, agent: int) -> None:
        super().__init__()
        self.team, self.agent = ActionGraph(policy), agent
        every, name = self.team.examples, f"obs/{AGENT_STATE}"
        require(name in every, "agent", "None with a policy that is not of a team", agent)
        number = every[name].shape[1]
        require(0 <= agent < number, "agent", f"in [0, {number}), as the team has {number} agents", agent)
        counts = discrete_counts(self.team.action_space)[0] if f"obs/{ACTION_MASK}" in every else ()
        self.legal = slice(sum(counts[:agent]), sum(counts[: agent + 1]))
        self.outputs = self.team.outputs
        self.examples = {"obs": every[name][:, agent]}
        if counts:
            self.examples[ACTION_MASK] = every[f"obs/{ACTION_MASK}"][:, self.legal]
        if STATE in every:
            self.examples[STATE] = every[STATE]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of ``outputs`` for those of ``examples``, in this order."""
        given = dict(zip(self.examples, inputs, strict=True))
        seen, whole = given["obs"], dict[str, Tensor]()
        for name, example in self.team.examples.items():
            filled = seen.new_zeros(seen.shape[0], *example.shape[1:], dtype=example.dtype)
            if name == f"obs/{AGENT_STATE}":
                before, after = filled[:, : self.agent], filled[:, self.agent + 1 :]
                filled = torch.cat([before, seen.unsqueeze(1), after], 1)
            elif name == f"obs/{ACTION_MASK}":
                before, after = filled[:, : self.legal.start] + 1, filled[:, self.legal.stop :] + 1
                filled = torch.cat([before, given[ACTION_MASK], after], 1)
            elif name == f"obs/{ALIVE}":
                filled = filled + 1  # norm_obs makes zeros of what an agent sees that has left
            whole[name] = given[STATE] if name == STATE else filled
        action, *rest = self.team(*whole.values())
        return (action[:, self.agent], *rest)


class _GivenState:
    """The recurrent state of a batch, with the methods of :class:`EnvStates` that acting uses."""

    def __init__(self, state: Tensor | None) -> None:
        self.before, self.after = state, None

    def read(self, env_ids: Any, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state and that no episode begins with it."""
        state = first if self.before is None else self.before
        return state, state.new_zeros(state.shape[0], dtype=torch.bool)

    def write(self, env_ids: Any, state: Any) -> None:
        """Keep the state after the observation."""
        self.after = state


def _copy_on_cpu(policy: Any) -> Any:
    """Return a policy with copies of all weights on the CPU; it shares its other attributes with the given one."""
    other = copy.copy(policy)
    held = {name: vars(policy)[name] for name in MODULE_DICTS}
    vars(other).update(copy.deepcopy(held))
    return other.cpu()


def _module(policy: Any, name: str) -> nn.Module | None:
    found = getattr(policy, name, None)
    return found if isinstance(found, nn.Module) else None


@contextmanager
def _memory(policy: Any, name: str | None, state: _GivenState) -> Iterator[None]:
    if name is None:
        yield
        return
    kept = getattr(policy, name)
    setattr(policy, name, state)
    try:
        yield
    finally:
        setattr(policy, name, kept)


def _examples(space: spaces.Space[Any], name: str = "obs") -> dict[str, Tensor]:
    """Return an example of each input, by name."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return {key: one for part, below in parts for key, one in _examples(below, f"{name}/{part}").items()}
    sample = torch.from_numpy(np.stack([np.asarray(space.sample(), space.dtype) for _ in range(EXAMPLE_SIZE)]))
    return {name: sample}


def _as_single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float16 else x


def _actions(action: Any, space: spaces.Space[Any]) -> list[Tensor]:
    """Return actions in the types and within the bounds of the space, as :func:`predict.from_batch` does."""
    if isinstance(space, spaces.Dict):
        return [one for name, below in space.spaces.items() for one in _actions(action[name], below)]
    kind = torch.from_numpy(np.zeros(1, space.dtype)).dtype
    action = action.to(kind)
    if not isinstance(space, spaces.Box) or not kind.is_floating_point:  # integers are within their bounds
        return [action]
    low, high = (torch.from_numpy(np.array(bound)) for bound in (space.low, space.high))
    return [torch.minimum(torch.maximum(action, low.to(action.device)), high.to(action.device))]


# ---------------------------------------------------------------------- formats


@contextmanager
def _recording(graph: nn.Module) -> Iterator[None]:
    """Record without gradients, in evaluation mode, and without the warnings of a deprecated or tracing exporter."""
    with torch.no_grad(), InEvalMode(graph), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _write_onnx(graph: Any, path: Path) -> None:
    """Write an ONNX file by torch's tracing exporter, which needs a tenth of a second and the package onnx alone."""
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise ImportError("this needs onnx: pip install 'lightning_ding[onnx]'") from error
    names = [*graph.examples, *graph.outputs]
    axes: Mapping[str, Any] = {name: {0: "batch"} for name in names}
    options: dict[str, Any] = {"input_names": list(graph.examples), "output_names": graph.outputs, "dynamo": False}
    with _recording(graph):
        torch.onnx.export(graph, tuple(graph.examples.values()), str(path), dynamic_axes=axes, **options)


def _write_torch_export(graph: Any, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    shapes = {"inputs": tuple({0: batch} for _ in graph.examples)}
    with _recording(graph):
        program = torch.export.export(graph, tuple(graph.examples.values()), dynamic_shapes=shapes)
        torch.export.save(program, path)
