"""Compute losses of DI-engine's policies that learn from sequences, and store them for ``test_same_sequences``.

Run it from the root of the repository in an environment with DI-engine 0.5.3:

    python -m tests.di_engine.make_ding_sequences tests/di_engine/ding_sequences.safetensors

Their ``_forward_learn`` runs with the networks below, without the wrappers that hold a state. A step of the optimizer
notes the gradients and changes nothing. Names in the file: ``case/model/number``, the parameters in their order,
``case/target/number``, ``case/in/name`` and ``case/out/name``. Everything is in double precision.

Shapes: T steps, B sequences.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.di_engine.stored import Values, normal, randomise, store_cases
from tests.di_engine.tiny_networks import ACTIONS, DIMENSIONS, HIDDEN, OBS

BURN_IN, LEARNED, NSTEP, GAMMA, SIZE = 2, 4, 3, 0.875, 5
STEPS = BURN_IN + LEARNED + NSTEP - 1
CONTEXT, SCALE = 4, 10.0


def numbered(network: nn.Module, name: str) -> Values:
    return {f"{name}/{number}": one.detach().clone() for number, one in enumerate(network.parameters())}


def noting(network: nn.Module) -> tuple[Any, Values]:
    """Return an optimizer that changes nothing, and a dict that gets the gradients at its step."""
    gradients: Values = {}

    def step() -> None:
        for number, one in enumerate(network.parameters()):
            if one.grad is not None:
                gradients[f"out/gradient.{number}"] = one.grad.clone()

    return SimpleNamespace(zero_grad=network.zero_grad, step=step, defaults={"lr": 0.0}), gradients


# ---------------------------------------------------------------------- R2D2


class Recurrent(nn.Module):
    """An encoder, a GRU and values of discrete actions, with the methods that DI-engine's R2D2 calls."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.core = nn.Linear(OBS, HIDDEN), nn.GRU(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, ACTIONS)
        self.state = torch.zeros(SIZE, HIDDEN)

    def reset(self, data_id: Any, state: Any) -> None:
        """Continue from the states of the sequences."""
        self.state = torch.stack(list(state))

    def forward(self, inputs: Any, saved_state_timesteps: Any = ()) -> dict[str, Any]:
        """Return the values of all steps, the best actions, and the states after some numbers of steps."""
        features = self.encoder(inputs["obs"]).tanh()
        output, last = self.core(features, self.state[None])
        self.state = last[0]
        logit, saved = self.head(output), [output[number - 1] for number in saved_state_timesteps]
        return {"logit": logit, "action": logit.argmax(2), "saved_state": saved}

    def update(self, state: Any) -> None:
        """Leave a target network as it is."""


def sequences(rng: np.random.Generator) -> Values:
    """Return sequences (T, B) of single steps; some episodes end with the last one."""
    ended = torch.zeros(STEPS, SIZE, dtype=torch.bool)
    ended[-1] = torch.from_numpy(rng.random(SIZE) < 0.5)
    return {
        "obs": normal(rng, STEPS + 1, SIZE, OBS),
        "action": torch.from_numpy(rng.integers(0, ACTIONS, (STEPS, SIZE))),
        "reward": 5 * normal(rng, STEPS, SIZE),
        "terminated": ended,
        "state": normal(rng, SIZE, HIDDEN).tanh(),
        "IS": torch.from_numpy(rng.uniform(0.2, 1, SIZE)),
    }


def items_of(given: Values) -> list[dict[str, Any]]:
    """Return the sequences in the form of DI-engine's buffer: rewards and ends of n steps, and one observation more.

    The last steps, of which it learns nothing, repeat the one before them.
    """
    items = []
    for item in range(SIZE):
        rows = [min(step, STEPS - NSTEP) for step in range(STEPS + 1)]
        columns = {
            "obs": list(given["obs"][:, item]),
            "action": [given["action"][row, item][None] for row in rows],
            "reward": [given["reward"][row : row + NSTEP, item] for row in rows],
            "done": [given["terminated"][row : row + NSTEP, item].any() for row in rows],
            "prev_state": [given["state"][item] for _ in rows],
            "IS": given["IS"][item][None],
        }
        items.append(columns)
    return items


def r2d2(rng: np.random.Generator, rescales: bool) -> Values:
    from ding.policy.r2d2 import R2D2Policy

    online, target = Recurrent(), Recurrent()
    randomise(online, rng)
    randomise(target, rng)
    optimizer, gradients = noting(online)
    learn = SimpleNamespace(ignore_done=False)
    policy: Any = SimpleNamespace(
        _cuda=False, _priority=True, _priority_IS_weight=True, _cfg=SimpleNamespace(learn=learn)
    )
    policy._burnin_step, policy._nstep, policy._gamma, policy._value_rescale = BURN_IN, NSTEP, GAMMA, rescales
    policy._sequence_len, policy._learn_model, policy._target_model = STEPS + 1, online, target
    policy._optimizer, policy._data_preprocess_learn = optimizer, partial(R2D2Policy._data_preprocess_learn, policy)
    given = sequences(rng)
    report = R2D2Policy._forward_learn(policy, items_of(given))
    weights = numbered(online, "model") | numbered(target, "target")
    found = {"out/loss": torch.tensor(report["total_loss"]), **gradients}
    return weights | {f"in/{name}": one for name, one in given.items()} | found


# ---------------------------------------------------------------------- the Decision Transformer


class Window(nn.Module):
    """Outputs of each step from what is known of that step, and from its action for the next one.

    Args:
        is_continuous: Whether actions are continuous.
    """

    def __init__(self, is_continuous: bool) -> None:
        super().__init__()
        self.is_continuous, self.actions = is_continuous, DIMENSIONS if is_continuous else ACTIONS
        self.step, self.before = nn.Linear(OBS + 2, self.actions), nn.Linear(self.actions, self.actions)

    def outputs(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor) -> Tensor:
        """Return outputs, shape (B, T, A)."""
        code = action if self.is_continuous else nn.functional.one_hot(action, self.actions).to(obs)
        earlier = torch.cat([torch.zeros_like(code[:, :1]), code[:, :-1]], 1)
        seen = torch.cat([obs, return_to_go.unsqueeze(2), timestep.unsqueeze(2).to(obs)], 2)
        out: Tensor = self.step(seen) + self.before(earlier)
        return out.tanh() if self.is_continuous else out

    def forward(self, timesteps: Any, states: Any, actions: Any, returns_to_go: Any) -> tuple[None, Tensor, None]:
        """Return what DI-engine's policy takes from its network."""
        return None, self.outputs(states, actions, returns_to_go.squeeze(2), timesteps), None


def dt(rng: np.random.Generator, is_continuous: bool) -> Values:
    from ding.policy.dt import DTPolicy

    network = Window(is_continuous)
    randomise(network, rng)
    optimizer, gradients = noting(network)
    optimizer.state_dict = lambda: {"param_groups": [{"lr": 0.0}]}
    length = torch.from_numpy(rng.integers(1, CONTEXT + 1, SIZE))
    action: Any = (
        rng.uniform(-1, 1, (SIZE, CONTEXT, DIMENSIONS)) if is_continuous else rng.integers(0, ACTIONS, (SIZE, CONTEXT))
    )
    given = {
        "timestep": torch.arange(CONTEXT) + torch.from_numpy(rng.integers(0, 5, (SIZE, 1))),
        "obs": normal(rng, SIZE, CONTEXT, OBS),
        "action": torch.from_numpy(action),
        "return_to_go": SCALE * normal(rng, SIZE, CONTEXT),
        "mask": torch.arange(CONTEXT) < length[:, None],
    }
    config = SimpleNamespace(model=SimpleNamespace(continuous=is_continuous), multi_gpu=False)
    policy: Any = SimpleNamespace(_learn_model=network, _optimizer=optimizer, _scheduler=optimizer, _cfg=config)
    policy._scheduler = SimpleNamespace(step=lambda: None)
    policy._basic_discrete_env, policy._atari_env, policy.act_dim = not is_continuous, False, network.actions
    policy._device, policy.clip_grad_norm_p = "cpu", 1e9
    shown = given["action"] if is_continuous else given["action"].unsqueeze(2)
    scaled = given["return_to_go"] / SCALE  # its data sets are scaled
    report = DTPolicy._forward_learn(policy, [given["timestep"], given["obs"], shown, scaled, given["mask"].long()])
    found = {"out/loss": torch.tensor(report["total_loss"]), **gradients}
    return numbered(network, "model") | {f"in/{name}": one for name, one in given.items()} | found


# ---------------------------------------------------------------------- the parts of GTrXL


KEYS, QUERIES, HEADS, HEAD_SIZE = 7, 4, 2, 3


def gtrxl_gate(rng: np.random.Generator) -> Values:
    from ding.torch_utils.network.gtrxl import GRUGatingUnit

    gate = GRUGatingUnit(HIDDEN, 0.5)
    randomise(gate, rng)
    given = {"in/x": normal(rng, QUERIES, SIZE, HIDDEN), "in/y": normal(rng, QUERIES, SIZE, HIDDEN)}
    weights = {f"model/{name}": one for name, one in gate.state_dict().items()}
    return {**weights, **given, "out/gated": gate(given["in/x"], given["in/y"])}


def gtrxl_shift(rng: np.random.Generator) -> Values:
    from ding.torch_utils.network.gtrxl import AttentionXL

    score = normal(rng, SIZE, HEADS, QUERIES, KEYS)
    shifted = AttentionXL(HIDDEN, HEAD_SIZE, HEADS, nn.Identity())._rel_shift(score, zero_upper=True)
    return {"in/score": score, "out/shifted": shifted}


def gtrxl_attention(rng: np.random.Generator) -> Values:
    """Return the attention of the last rows to all rows that are not later, without layer normalisation."""
    from ding.torch_utils.network.gtrxl import AttentionXL, PositionalEmbedding

    attention = AttentionXL(HIDDEN, HEAD_SIZE, HEADS, nn.Identity())
    randomise(attention, rng)
    rows, u, v = normal(rng, KEYS, SIZE, HIDDEN), normal(rng, HEADS, HEAD_SIZE), normal(rng, HEADS, HEAD_SIZE)
    positions = PositionalEmbedding(HIDDEN)(torch.arange(KEYS - 1, -1, -1.0))
    later = torch.ones(QUERIES, KEYS).triu(1 + KEYS - QUERIES).bool().unsqueeze(-1)
    seen = attention(rows[-QUERIES:], positions, rows, u, v, mask=later)
    weights = {f"model/{name}": one for name, one in attention.state_dict().items()} | {"model/u": u, "model/v": v}
    return {**weights, "in/rows": rows, "out/positions": positions.squeeze(1), "out/seen": seen}


CASES: dict[str, Any] = {
    "r2d2": partial(r2d2, rescales=False),
    "r2d2_rescaled": partial(r2d2, rescales=True),
    "dt": partial(dt, is_continuous=False),
    "dt_continuous": partial(dt, is_continuous=True),
    "gtrxl_gate": gtrxl_gate,
    "gtrxl_shift": gtrxl_shift,
    "gtrxl_attention": gtrxl_attention,
}


if __name__ == "__main__":
    store_cases(CASES, sys.argv[1])
