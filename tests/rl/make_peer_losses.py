"""Compute losses and targets of other projects on random numbers, and store them for ``test_peer_losses``.

Run it from the root of the repository in an environment with sb3-contrib 2.9.2, Tianshou 2.0.1 or d3rlpy 2.8.1:

    python -m tests.rl.make_peer_losses sb3_contrib tests/rl/sb3_contrib_losses.safetensors
    python -m tests.rl.make_peer_losses tianshou tests/rl/tianshou_losses.safetensors
    python -m tests.rl.make_peer_losses d3rlpy tests/rl/d3rlpy_losses.safetensors

Names in the file: ``case/in/name``, ``case/model/parameter`` and ``case/out/name``. Everything is in double precision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.di_engine.tiny_networks import DIMENSIONS, OBS, Output, TinyQAC

ROWS, CRITICS, PREDICTED, TARGETS, ALPHA, GAMMA = 6, 4, 5, 7, 0.3, 0.875
SUBSET = [2, 0]  # critics of REDQ's target
BETA, SAMPLES, TARGET_ENTROPY = 2.0, 3, -1.5
Values = dict[str, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(2 * rng.standard_normal(shape))


def tqc(rng: np.random.Generator) -> tuple[Values, Values]:
    from sb3_contrib.common.utils import quantile_huber_loss

    given = {"quantile": normal(rng, CRITICS, ROWS, PREDICTED).requires_grad_(), "target": normal(rng, ROWS, TARGETS)}
    quantile, target = given["quantile"].transpose(0, 1), given["target"].unsqueeze(1)
    loss = quantile_huber_loss(quantile, target, sum_over_quantiles=False)
    loss.backward()
    return given, {"loss": loss, "gradient": given["quantile"].grad}


def qrdqn(rng: np.random.Generator) -> tuple[Values, Values]:
    from sb3_contrib.common.utils import quantile_huber_loss

    given = {"quantile": normal(rng, ROWS, PREDICTED).requires_grad_(), "target": normal(rng, ROWS, TARGETS)}
    loss = quantile_huber_loss(given["quantile"], given["target"], sum_over_quantiles=True)
    loss.backward()
    return given, {"loss": loss, "gradient": given["quantile"].grad}


def redq(rng: np.random.Generator) -> tuple[Values, Values]:
    from tianshou.algorithm.modelfree.redq import REDQ

    given = {"q": normal(rng, CRITICS, ROWS), "log_prob": normal(rng, ROWS)}
    algorithm: Any = SimpleNamespace(ensemble_size=CRITICS, subset_size=len(SUBSET), target_mode="min")
    algorithm.critic_old, algorithm.alpha = lambda obs, action: given["q"].clone(), SimpleNamespace(value=ALPHA)
    drawn = SimpleNamespace(act=None, log_prob=given["log_prob"])
    with mock.patch("numpy.random.choice", return_value=np.array(SUBSET)):
        value = REDQ._target_q_compute_value(algorithm, SimpleNamespace(obs=None), drawn)
    return given, {"value": value}


class TinyBatchQAC(TinyQAC):
    """An actor and critics whose inputs are normalised by the moments of the batch, or by fixed ones."""

    def compute_actor(self, obs: Tensor, by_batch: bool = False) -> Output:
        """Return means and logarithms of standard deviations, and no statistics."""
        return {**super().compute_actor(_normalised(obs, by_batch)), "statistics": obs.new_empty(2, 0)}

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None, by_batch: bool = False) -> Output:
        """Return values (E, B), and no statistics."""
        joined = _normalised(torch.cat([obs, action], 1), by_batch)
        found = super().compute_critic(joined[:, :OBS], joined[:, OBS:], members)
        return {**found, "statistics": obs.new_empty(2, 0)}


def _normalised(x: Tensor, by_batch: bool) -> Tensor:
    return (x - x.mean(0)) / x.std(0) if by_batch else 0.5 * x - 0.1


def made(network: nn.Module, rng: np.random.Generator) -> Any:
    """Return the network with drawn parameters."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-1, 1, tuple(parameter.shape))))
    return network


def of_network(network: nn.Module) -> Values:
    return {f"model/{name}": value.clone() for name, value in network.state_dict().items()}


def gradients_of(network: nn.Module) -> Values:
    """Return copies of the gradients there are."""
    named = network.named_parameters()
    return {f"gradient.{name}": one.grad.clone() for name, one in named if one.grad is not None}


class Part:
    """The actor or the critics in sb3-contrib's form; a step of the optimizer notes the gradients and changes nothing.

    Args:
        name: ``actor`` or ``critic``.
        network: The network of both.
        noise: Noise of the actions, in the order in which they are drawn.
    """

    def __init__(self, name: str, network: Any, noise: list[Tensor]) -> None:
        self.name, self.network, self.noise, self.by_batch = name, network, iter(noise), False
        self.optimizer = SimpleNamespace(zero_grad=network.zero_grad, step=self.step)
        self.gradients: Values = {}

    def step(self) -> None:
        """Note the gradients of this part."""
        found, start = gradients_of(self.network), f"gradient.{self.name}"
        self.gradients = {name: one for name, one in found.items() if name.startswith(start)}

    def set_bn_training_mode(self, mode: bool) -> None:
        """Normalise by the moments of the batch, or by fixed ones."""
        self.by_batch = mode

    def __call__(self, obs: Tensor, action: Tensor) -> list[Tensor]:
        """Return values, shape (B, 1), of each critic."""
        return list(self.network.compute_critic(obs, action, by_batch=self.by_batch)["q_value"].unsqueeze(2))

    def action_log_prob(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return sampled actions, and the logarithm of their density."""
        output = self.network.compute_actor(obs, self.by_batch)
        before = output["mu"] + output["log_sigma"].exp() * next(self.noise)
        density = torch.distributions.Normal(output["mu"], output["log_sigma"].exp()).log_prob(before)
        return before.tanh(), (density - (1 - before.tanh().square()).log()).sum(1)


def crossq(rng: np.random.Generator) -> tuple[Values, Values]:
    from sb3_contrib import CrossQ

    network = made(TinyBatchQAC("gaussian"), rng)
    given = {name: 2 * normal(rng, ROWS, OBS) for name in ("obs", "next_obs")}
    given |= {name: normal(rng, ROWS, DIMENSIONS) / 2 for name in ("noise", "next_noise")}
    given |= {"reward": normal(rng, ROWS), "action": torch.from_numpy(rng.uniform(-1, 1, (ROWS, DIMENSIONS)))}
    given |= {"terminated": torch.from_numpy(rng.random(ROWS) < 0.4)}
    drawn = SimpleNamespace(observations=given["obs"], next_observations=given["next_obs"], actions=given["action"])
    drawn.rewards, drawn.dones, drawn.discounts = given["reward"][:, None], given["terminated"].double()[:, None], None
    noise = [given["next_noise"], given["noise"]]
    actor, critic = (Part(name, network, noise) for name in ("actor", "critic"))
    log_alpha = torch.tensor([ALPHA]).log().requires_grad_()
    logged: dict[str, Any] = {}
    algorithm: Any = mock.MagicMock(
        use_sde=False, gamma=GAMMA, _n_updates=0, policy_delay=1, actor=actor, critic=critic
    )
    algorithm.log_ent_coef, algorithm.target_entropy = log_alpha, TARGET_ENTROPY
    algorithm.replay_buffer.sample.return_value = drawn
    algorithm.logger.record = lambda name, value, **_: logged.update({name: value})
    CrossQ.train(algorithm, gradient_steps=1, batch_size=ROWS)
    losses = {name: torch.tensor(logged[f"train/{name}"]) for name in ("actor_loss", "critic_loss", "ent_coef_loss")}
    assert log_alpha.grad is not None
    found = losses | actor.gradients | critic.gradients | {"temperature": log_alpha.grad[0]}
    return given | of_network(network), found


def actor_and_data(rng: np.random.Generator) -> tuple[Any, Values, Any, Any]:
    """Return a network, observations and actions, and both in the forms of d3rlpy's losses."""
    from d3rlpy.models.torch import ActionOutput

    network = made(TinyQAC("gaussian", with_value=True), rng)
    given = {"obs": 2 * normal(rng, ROWS, OBS), "action": torch.from_numpy(rng.uniform(-1, 1, (ROWS, DIMENSIONS)))}
    output = network.compute_actor(given["obs"])
    action = ActionOutput(output["mu"], output["mu"].tanh(), output["log_sigma"].clamp(-5, 2))  # the range of its IQL
    return network, given, SimpleNamespace(observations=given["obs"], actions=given["action"]), action


def smallest(network: Any, obs: Tensor, action: Tensor, reduction: str) -> Tensor:
    found: Tensor = network.compute_critic(obs, action)["q_value"].amin(0).unsqueeze(1)
    return found


def iql(rng: np.random.Generator) -> tuple[Values, Values]:
    from d3rlpy.algos.qlearning.torch.iql_impl import IQLImpl

    network, given, batch, action = actor_and_data(rng)
    values = SimpleNamespace(value_func=lambda obs: network.compute_value(obs).unsqueeze(1))
    algorithm: Any = SimpleNamespace(_modules=values, _weight_temp=BETA, _max_weight=100.0)
    algorithm._targ_q_func_forwarder = SimpleNamespace(compute_expected_q=partial(smallest, network))
    algorithm._compute_weight = partial(IQLImpl._compute_weight, algorithm)
    loss = IQLImpl.compute_actor_loss(algorithm, batch, action).actor_loss
    loss.backward()
    return given | of_network(network), {"loss": loss, **gradients_of(network)}


def awac(rng: np.random.Generator) -> tuple[Values, Values]:
    from d3rlpy.algos.qlearning.torch.awac_impl import AWACImpl

    network, given, batch, action = actor_and_data(rng)
    given["noise"] = normal(rng, ROWS, DIMENSIONS, SAMPLES)
    algorithm: Any = SimpleNamespace(_lam=1 / BETA, _n_action_samples=SAMPLES, action_size=DIMENSIONS)
    algorithm._q_func_forwarder = SimpleNamespace(compute_expected_q=partial(smallest, network))
    algorithm._modules = SimpleNamespace(policy=lambda obs: action)
    algorithm._compute_weights = partial(AWACImpl._compute_weights, algorithm)
    noise = given["noise"].permute(2, 0, 1)
    with mock.patch("torch.distributions.normal._standard_normal", return_value=noise):
        loss = AWACImpl.compute_actor_loss(algorithm, batch, action).actor_loss
    loss.backward()
    return given | of_network(network), {"loss": loss, **gradients_of(network)}


CASES: dict[str, dict[str, Callable[[np.random.Generator], tuple[Values, Values]]]] = {
    "sb3_contrib": {"tqc": tqc, "qrdqn": qrdqn, "crossq": crossq},
    "tianshou": {"redq": redq},
    "d3rlpy": {"iql": iql, "awac": awac},
}


def main(peer: str, path: str) -> None:
    """Compute all cases of a peer and write them to a file."""
    torch.set_default_dtype(torch.float64)
    stored: Values = {}
    for number, (name, case) in enumerate(CASES[peer].items()):
        for side, values in zip(("in", "out"), case(np.random.default_rng(number)), strict=True):
            for key, one in values.items():
                place = key if key.startswith("model/") else f"{side}/{key}"
                stored[f"{name}/{place}"] = one.detach().clone().contiguous()
    save_file(stored, path)
    print(f"{len(stored)} tensors in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
