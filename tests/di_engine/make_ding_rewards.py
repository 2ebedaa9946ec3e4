"""Compute losses and rewards of DI-engine's reward models, and store them for ``test_same_rewards``.

Run it from the root of the repository in an environment with DI-engine 0.5.3:

    python -m tests.di_engine.make_ding_rewards tests/di_engine/ding_rewards.safetensors

The models have the networks below. A step of an optimizer notes the gradients and changes nothing. Names in the file:
``case/model/parameter``, ``case/in/name`` and ``case/out/name``. Everything is in double precision, but the statistics
of observations, which DI-engine rounds to single precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from tests.di_engine.stored import Values, normal, randomise, store_cases
from tests.di_engine.tiny_networks import ACTIONS, DIMENSIONS, OBS, body

ROWS, FEATURES, WEIGHT, LARGEST, CLAMP, REVERSE = 6, 5, 0.25, 2.0, 1.0, 0.75


def make(kind: Any, network: nn.Module | None, rng: np.random.Generator, **changes: Any) -> tuple[Any, Values]:
    """Return a reward model with drawn weights, and a dict that gets the gradients of its next update."""
    from easydict import EasyDict

    with mock.patch.object(kind, "load_expert_data", create=True):
        model = kind(EasyDict({**kind.config, "batch_size": ROWS, **changes}), "cpu", mock.MagicMock())
    model.reward_model = network or model.reward_model
    randomise(model.reward_model, rng)
    gradients: Values = {}

    def step() -> None:
        named = model.reward_model.named_parameters()
        gradients.update({f"out/gradient.{name}": one.grad.clone() for name, one in named if one.grad is not None})

    model.opt = SimpleNamespace(zero_grad=model.reward_model.zero_grad, step=step)
    return model, gradients


def logged(model: Any, name: str) -> Tensor:
    """Return the last value that a model logged under a name."""
    found: Tensor = [call.args[1] for call in model.tb_logger.add_scalar.call_args_list if call.args[0] == name][-1]
    return found


def rows_of(columns: Values) -> list[dict[str, Tensor]]:
    """Return the columns as a list of dicts; rewards and discrete actions have one entry."""
    rows = [{name: column[row] for name, column in columns.items()} for row in range(ROWS)]
    return [{name: one if one.ndim else one[None] for name, one in row.items()} for row in rows]


def with_weights(model: Any, given: Values, found: Values) -> Values:
    """Return all values of a case under their names in the file."""
    weights = {f"model/{name}": value for name, value in model.reward_model.state_dict().items()}
    return {**weights, **{f"in/{name}": value for name, value in given.items()}, **found}


def gail(rng: np.random.Generator) -> Values:
    from ding.reward_model.gail_irl_model import GailRewardModel

    model, gradients = make(GailRewardModel, None, rng, input_size=OBS + DIMENSIONS, hidden_size=4)
    sides = {side: {"obs": normal(rng, ROWS, OBS), "action": normal(rng, ROWS, DIMENSIONS)} for side in ("", "expert_")}
    own, expert = (torch.cat([one["obs"], one["action"]], 1) for one in sides.values())
    found = {"out/loss": torch.tensor(model.learn(own, expert)), **gradients}
    rows = model.estimate(rows_of({**sides[""], "reward": normal(rng, ROWS)}))
    found["out/reward"] = torch.stack([row["reward"].squeeze() for row in rows])
    given = {f"{side}{name}": value for side, one in sides.items() for name, value in one.items()}
    return with_weights(model, given, found)


def intrinsic(model: Any, columns: Values, loss_name: str) -> Values:
    """Return the loss of a minibatch of all rows, and the rewards, added to those of the env and alone."""
    rows = rows_of(columns)
    model.collect_data(rows)
    with mock.patch("random.sample", side_effect=lambda items, number: items[:number]):
        model._train()
    found = {"out/loss": logged(model, loss_name)}
    for model.intrinsic_reward_type in ("add", "assign"):
        rewards = [row["reward"].squeeze() for row in model.estimate(rows)]
        found[f"out/{model.intrinsic_reward_type}"] = torch.stack(rewards)
    return found


class TwoNetworks(nn.Module):
    """A predictor and its target."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.predictor = body(OBS, FEATURES).requires_grad_(False), body(OBS, FEATURES)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prediction and what it should be."""
        return self.predictor(obs), self.target(obs)


SCALES = {"intrinsic_reward_weight": WEIGHT, "extrinsic_reward_norm": True, "extrinsic_reward_norm_max": LARGEST}


def rnd(rng: np.random.Generator) -> Values:
    from ding.reward_model.rnd_reward_model import RndRewardModel, to_tensor

    clamps = {"obs_norm": True, "obs_norm_clamp_min": -CLAMP, "obs_norm_clamp_max": CLAMP}
    shapes = {"obs_shape": OBS, "hidden_size_list": [4, 4]}
    model, gradients = make(RndRewardModel, TwoNetworks(), rng, **shapes, **clamps, **SCALES)
    given = {"obs": 3 + 2 * normal(rng, ROWS, OBS), "reward": normal(rng, ROWS)}
    found = intrinsic(model, given, "rnd_reward/loss")
    statistics = model._running_mean_std_rnd_obs
    given |= {name: to_tensor(getattr(statistics, name)) for name in ("mean", "std")}
    return with_weights(model, given, {**found, **gradients})


class Curiosity(nn.Module):
    """Features, an inverse and a forward model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = body(OBS, FEATURES)
        self.inverse_model, self.forward_model = body(2 * FEATURES, ACTIONS), body(FEATURES + ACTIONS, FEATURES)

    def forward(self, obs: Tensor, next_obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next features, their prediction, and the logits of the action."""
        before, after = self.encoder(obs), self.encoder(next_obs)
        chosen = nn.functional.one_hot(action, ACTIONS).to(before)
        predicted = self.forward_model(torch.cat([before, chosen], 1))
        return after, predicted, self.inverse_model(torch.cat([before, after], 1))


def icm(rng: np.random.Generator) -> Values:
    from ding.reward_model.icm_reward_model import ICMRewardModel

    shapes = {"obs_shape": OBS, "action_shape": ACTIONS, "hidden_size_list": [4, 4], "reverse_scale": REVERSE}
    model, gradients = make(ICMRewardModel, Curiosity(), rng, **shapes, **SCALES)
    given = {"obs": normal(rng, ROWS, OBS), "next_obs": normal(rng, ROWS, OBS), "reward": normal(rng, ROWS)}
    given["action"] = torch.from_numpy(rng.integers(0, ACTIONS, ROWS))
    found = intrinsic(model, given, "icm_reward/total_loss")
    return with_weights(model, given, {**found, **gradients})


CASES: dict[str, Callable[[np.random.Generator], Values]] = {"gail": gail, "rnd": rnd, "icm": icm}


if __name__ == "__main__":
    store_cases(CASES, sys.argv[1])
