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
LAMBDA1, LAMBDA2, MARGIN, ONE_STEP = 0.75, 1.5, 0.6, 0.4
POLICIES, NEIGHBOURS = 6, 10


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

    added = 0  # inputs of the GRU after the features

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.core = nn.Linear(OBS, HIDDEN), nn.GRU(HIDDEN + self.added, HIDDEN)
        self.head = nn.Linear(HIDDEN, ACTIONS)
        self.state = torch.zeros(SIZE, HIDDEN)

    def reset(self, data_id: Any, state: Any) -> None:
        """Continue from the states of the sequences."""
        self.state = torch.stack(list(state))

    def forward(self, inputs: Any, saved_state_timesteps: Any = ()) -> dict[str, Any]:
        """Return the values of all steps, the best actions, and the states after some numbers of steps."""
        features = self.encoder(inputs["obs"]).tanh()
        if self.added:
            features = torch.cat([features, nn.functional.one_hot(inputs["beta"], self.added).to(features)], 2)
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
    policy, gradients = learner(R2D2Policy, online, target, rescales)
    given = sequences(rng)
    report = R2D2Policy._forward_learn(policy, items_of(given))
    weights = numbered(online, "model") | numbered(target, "target")
    found = {"out/loss": torch.tensor(report["total_loss"]), **gradients}
    return weights | {f"in/{name}": one for name, one in given.items()} | found


class OfFamily(Recurrent):
    """The same, with the number of a policy as a one-hot vector."""

    added = POLICIES


def learner(policy_class: Any, online: Recurrent, target: Recurrent, rescales: bool) -> tuple[Any, Values]:
    """Return an object that ``_forward_learn`` of a class takes for its policy, and a dict that gets the gradients."""
    optimizer, gradients = noting(online)
    learn = SimpleNamespace(ignore_done=False)
    policy: Any = SimpleNamespace(
        _cuda=False, _priority=True, _priority_IS_weight=True, _cfg=SimpleNamespace(learn=learn)
    )
    policy._burnin_step, policy._nstep, policy._gamma, policy._value_rescale = BURN_IN, NSTEP, GAMMA, rescales
    policy._sequence_len, policy._learn_model, policy._target_model = STEPS + 1, online, target
    policy._optimizer, policy._data_preprocess_learn = optimizer, partial(policy_class._data_preprocess_learn, policy)
    return policy, gradients


def r2d3(rng: np.random.Generator, rescales: bool) -> Values:
    from ding.policy.r2d3 import R2D3Policy

    online, target = Recurrent(), Recurrent()
    randomise(online, rng)
    randomise(target, rng)
    policy, gradients = learner(R2D3Policy, online, target, rescales)
    policy.lambda1, policy.lambda2, policy.lambda_one_step_td, policy.margin_function = (
        LAMBDA1,
        LAMBDA2,
        ONE_STEP,
        MARGIN,
    )
    given = sequences(rng) | {"is_expert": torch.from_numpy(rng.random(SIZE) < 0.5)}
    items = items_of(given)
    for item, sequence in enumerate(items):
        rows = [min(step, STEPS - 1) for step in range(STEPS + 1)]
        sequence["done_one_step"] = [given["terminated"][row, item] for row in rows]
        sequence["is_expert"] = [given["is_expert"][item].long() for _ in rows]
    report = R2D3Policy._forward_learn(policy, items)
    weights = numbered(online, "model") | numbered(target, "target")
    found = {"out/loss": torch.tensor(report["total_loss"]), **gradients}
    return weights | {f"in/{name}": one for name, one in given.items()} | found


def ngu(rng: np.random.Generator) -> Values:
    from ding.policy.ngu import NGUPolicy

    online, target = OfFamily(), OfFamily()
    randomise(online, rng)
    randomise(target, rng)
    policy, gradients = learner(NGUPolicy, online, target, rescales=True)
    longest, shortest = (torch.log(torch.tensor(1 - gamma)) for gamma in (0.997, 0.99))
    policy.index_to_gamma = {  # of its _init_collect
        j: 1 - torch.exp(((POLICIES - 1 - j) * longest + j * shortest) / (POLICIES - 1)) for j in range(POLICIES)
    }
    given = sequences(rng) | {"policy": torch.from_numpy(rng.integers(0, POLICIES, SIZE))}
    items = items_of(given)
    for item, sequence in enumerate(items):
        sequence["beta"] = [given["policy"][item][None] for _ in sequence["obs"]]
    report = NGUPolicy._forward_learn(policy, items)
    weights = numbered(online, "model") | numbered(target, "target")
    gammas = torch.stack([policy.index_to_gamma[j] for j in range(POLICIES)])
    found = {"out/loss": torch.tensor(report["total_loss"]), "out/gammas": gammas, **gradients}
    return weights | {f"in/{name}": one for name, one in given.items()} | found


def novelty(rng: np.random.Generator) -> Values:
    """Return the episodic reward of each embedding of an episode, and the rewards with the weighted intrinsic one.

    The weights of the first and of the last policy, which are not those of the paper, are left out.
    """
    from ding.reward_model.ngu_reward_model import EpisodicNGURewardModel
    from ding.utils import RunningMeanStd

    embeddings = normal(rng, 30, 4)
    embeddings[20:25] = embeddings[3] + 1e-3 * normal(rng, 5, 4)
    model: Any = SimpleNamespace(_running_mean_std_episodic_dist=RunningMeanStd(epsilon=1e-4))
    reward = partial(EpisodicNGURewardModel._compute_intrinsic_reward, model, k=NEIGHBOURS)
    episodic = [reward(embeddings[:step], embeddings[step]) for step in range(NEIGHBOURS, 30)]
    shape = (POLICIES - 2, 5)
    given = {name: normal(rng, *shape) for name in ("reward", "episodic", "lifelong")}
    given["lifelong"] *= 4
    data = [
        {"reward": list(given["reward"][j].unsqueeze(1)), "null": [False] * 5, "done": [False] * 5, "beta": [j + 1] * 5}
        for j in range(POLICIES - 2)
    ]
    model.cfg = SimpleNamespace(last_nonzero_reward_weight=1, last_nonzero_reward_rescale=False)
    model.reward_deepcopy = lambda rows: [{**row, "reward": [one.clone() for one in row["reward"]]} for row in rows]
    writer = SimpleNamespace(add_scalar=lambda *_: None)
    parts = (given["lifelong"].flatten(), given["episodic"].flatten(), 1, POLICIES, writer, 0)
    mixed, _ = EpisodicNGURewardModel.fusion_reward(model, data, *parts)
    total = torch.stack([torch.cat(row["reward"]) for row in mixed])[:, :-1]  # it leaves out the last nstep
    found = {"out/episodic": torch.stack(episodic).double(), "out/reward": total}
    return {"in/embeddings": embeddings, **{f"in/{name}": one for name, one in given.items()}, **found}


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
    "r2d3": partial(r2d3, rescales=False),
    "r2d3_rescaled": partial(r2d3, rescales=True),
    "ngu": ngu,
    "novelty": novelty,
}


if __name__ == "__main__":
    store_cases(CASES, sys.argv[1])
