"""BCQ's losses against loops written from the paper's algorithm 1, and its candidates.

The networks have random weights; the target networks differ from the trained ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import BCQPolicy, create_policy

Config = dict[str, Any]
SIZES: Config = {"obs_shape": 3, "action_shape": 2, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
B, N, L = 6, 3, 4


def made(model: Config | None = None, **learn: Any) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "vae_hidden_size_list": [8], "candidates": 5, "phi": 0.3, **(model or {})}
    policy = BCQPolicy({"model": sizes, "learn": {"num_actions": N, **learn}})
    policy.seed(0)
    for parameter in policy.target_model.parameters():  # else it equals the network
        parameter.data.add_(0.05)
    return policy


def batch_of(policy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {
        name: torch.from_numpy(rng.normal(size=(B, 3)).astype(np.float32)) for name in ("obs", "next_obs")
    }
    tensors["action"] = torch.from_numpy(rng.uniform(-1, 1, (B, 2)).astype(np.float32))
    tensors["reward"] = torch.from_numpy(rng.normal(size=B).astype(np.float32))
    tensors["terminated"] = torch.arange(B) == 2
    return policy.prepare(tensors)  # type: ignore[no-any-return]


def layers(mlp: Any, x: Tensor) -> Tensor:
    for number, layer in enumerate(mlp.layers):
        x = x @ layer.weight.T + layer.bias
        x = x.clamp(min=0) if number < len(mlp.layers) - 1 else x
    return x


def decoded(model: Any, obs: Tensor, noise: Tensor) -> Tensor:
    """Return the action of one observation, from its clipped latent variable."""
    return layers(model.vae.decode, torch.cat([obs, noise.clamp(-0.5, 0.5)])).tanh()


def shifted(model: Any, obs: Tensor, action: Tensor) -> Tensor:
    shift = 0.3 * layers(model.actor.head, torch.cat([obs, action])).tanh()
    return (action + shift).clamp(-1, 1)


def values(model: Any, obs: Tensor, action: Tensor) -> list[float]:
    return model.compute_critic(obs[None], action[None])["q_value"][:, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("weight", [None, 0.7])
def test_loss_of_the_auto_encoder_equals_a_loop(weight: float | None) -> None:
    policy = made(kl_weight=weight)
    batch = batch_of(policy)
    loss, report = policy.vae_loss(batch)
    recons, divergence = 0.0, 0.0
    with torch.no_grad():
        for row in range(B):
            output = layers(policy.model.vae.encode, torch.cat([batch["obs"][row], batch["action"][row]]))
            mu, log_sigma = output[:L], output[L:]
            latent = mu + log_sigma.exp() * batch["vae_noise"][row]
            action = layers(policy.model.vae.decode, torch.cat([batch["obs"][row], latent])).tanh()
            recons += float(((action - batch["action"][row]) ** 2).sum()) / (2 * B)
            one = torch.distributions.Normal(mu, log_sigma.exp())
            divergence += float(torch.distributions.kl_divergence(one, torch.distributions.Normal(0, 1)).sum()) / B
    assert_close(report["recons_loss"].item(), recons, rtol=1e-5, atol=1e-6)
    assert_close(report["kl_loss"].item(), divergence, rtol=1e-5, atol=1e-6)
    assert_close(loss.item(), recons + (1 / (2 * L) if weight is None else weight) * divergence, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_target_equals_a_loop_over_candidates() -> None:
    policy = made(lmbda=0.6)
    batch = batch_of(policy)
    expected = []
    for row in range(B):
        obs, best = batch["next_obs"][row], -np.inf
        for noise in batch["next_noise"][row]:
            action = shifted(policy.target_model, obs, decoded(policy.model, obs, noise))
            q = values(policy.target_model, obs, action)
            best = max(best, 0.6 * min(q) + 0.4 * max(q))
        expected.append(float(batch["reward"][row]) + (0.0 if row == 2 else 0.99) * best)
    assert batch["next_noise"].shape == (B, N, L)
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_actor_maximises_the_first_critic_and_trains_nothing_else() -> None:
    policy = made()
    batch = batch_of(policy)
    loss, _ = policy.actor_loss(batch)
    with torch.no_grad():
        pairs = zip(batch["obs"], batch["noise"], strict=True)
        q = [
            values(policy.model, obs, shifted(policy.model, obs, decoded(policy.model, obs, z)))[0] for obs, z in pairs
        ]
    assert_close(loss.item(), -sum(q) / B, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert all(one.grad is not None for one in policy.model.actor.parameters())
    assert all(one.grad is None for one in policy.model.vae.parameters())


def test_an_update_trains_each_part_by_its_own_loss() -> None:
    """With steps of 0 size of two parts, the third alone changes."""
    for part in ("actor", "critic", "vae"):
        rates: Config = {f"learning_rate_{one}": 1e-2 if one == part else 1e-30 for one in ("actor", "critic", "vae")}
        policy = made(**rates)
        before = {name: one.clone() for name, one in policy.model.named_parameters()}
        policy.learn_mode.forward(batch_of(policy))
        changed = {name.split(".")[0] for name, one in policy.model.named_parameters() if not one.equal(before[name])}
        assert changed == {part}


@torch.no_grad()
def test_evaluation_takes_the_candidate_that_the_first_critic_values_most() -> None:
    policy = made()
    obs = torch.linspace(-1, 1, 12).view(4, 3)
    found = policy.eval_mode.forward(obs)["action"]
    for row in range(4):
        candidates = [shifted(policy.model, obs[row], decoded(policy.model, obs[row], z)) for z in policy.model.latents]
        best = max(candidates, key=lambda action: values(policy.model, obs[row], action)[0])
        assert_close(found[row], best, rtol=1e-5, atol=1e-6)
    assert found.equal(policy.eval_mode.forward(obs)["action"])
    assert made().model.latents.equal(policy.model.latents)


@torch.no_grad()
def test_collecting_draws_new_candidates_and_repeats_them_for_a_seed() -> None:
    policy, obs = made(), torch.linspace(-1, 1, 12).view(4, 3)
    policy.seed(5)
    noise = torch.from_numpy(policy.rng.standard_normal((4, N, L), dtype=np.float32))
    policy.seed(5)
    first, second = (policy.collect_mode.forward(obs)["action"] for _ in range(2))
    assert first.equal(policy.model.compute_actor(obs, noise)["action"])
    assert not first.equal(second)


@torch.no_grad()
def test_actions_are_within_phi_of_what_the_auto_encoder_makes() -> None:
    policy = made({"phi": 0.0})
    obs, noise = torch.zeros(1, 3), policy.model.latents[None]
    action = policy.model.decode(obs, noise)
    assert policy.model.perturb(obs, action).equal(action)
    policy = made({"phi": 0.1})
    for bias in policy.model.actor.head.layers[-1:]:
        bias.bias.fill_(50.0)
    action = policy.model.decode(obs, noise)
    assert_close(policy.model.perturb(obs, action), (action + 0.1).clamp(-1, 1))


def test_target_is_that_worked_out() -> None:
    """Critics value two candidates 1, 4 and 3, 0: with 0.75 the values are 1.5 and 1, and the target is 2 + 1.5 / 2."""
    q_t = torch.tensor([[[1.0, 4.0]], [[3.0, 0.0]]])
    found = rl.best_candidate_target(torch.tensor([2.0]), torch.tensor([0.5]), q_t, 0.75)
    assert_close(found, torch.tensor([2.75]))
    found = rl.best_candidate_target(torch.tensor([2.0]), torch.tensor([0.0]), q_t, 0.75)
    assert_close(found, torch.tensor([2.0]))


def test_divergence_from_a_standard_normal_distribution_is_that_worked_out() -> None:
    """Of means 1 and 0 and standard deviations 1 and e: 1 / 2, and (e^2 - 1 - 2) / 2."""
    found = rl.standard_normal_kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    assert_close(found, torch.tensor([0.5 + (np.e**2 - 3) / 2], dtype=torch.float32))


@pytest.mark.parametrize("share", [False, True])
def test_dict_observations_are_encoded_for_each_part(share: bool) -> None:
    model = {**SIZES, "obs_shape": None, "action_shape": None, "vae_hidden_size_list": [8]}
    model |= {"encoder_hidden_size_list": [8], "share_encoder": share}
    policy = BCQPolicy({"model": model})
    box = spaces.Box(-1, 1, (3,))
    policy.build(spaces.Dict({"a": box, "b": box}), spaces.Box(-2, 2, (2,)))
    policy.seed(0)
    obs = {"a": torch.randn(B, 3), "b": torch.randn(B, 3)}
    rows = {"obs": obs, "next_obs": obs, "action": torch.ones(B, 2), "reward": torch.ones(B)}
    before = [one.clone() for one in policy.model.vae.encoder.parameters()]
    policy.learn_mode.forward({**rows, "terminated": torch.zeros(B).bool()})
    assert not all(map(torch.equal, before, policy.model.vae.encoder.parameters()))
    assert policy.collect_mode.forward(obs)["action"].shape == policy.eval_mode.forward(obs)["action"].shape == (B, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"phi": -1.0}}, "model.phi must be >= 0, got -1.0"),
        ({"model": {"latent_size": 0}}, "model.latent_size must be >= 1, got 0"),
        ({"model": {"vae_hidden_size_list": [0]}}, "model.vae_hidden_size_list must be"),
        ({"model": {"candidates": 0}}, "model.candidates must be >= 1, got 0"),
        (
            {"model": {"action_shape": {"action_type_shape": 2, "action_args_shape": 1}}},
            "there is no choice to imitate",
        ),
        ({"learn": {"lmbda": 1.5}}, r"learn.lmbda must be in \[0, 1\], got 1.5"),
        ({"learn": {"num_actions": 0}}, "learn.num_actions must be >= 1, got 0"),
        ({"learn": {"kl_weight": -1.0}}, "learn.kl_weight must be >= 0 or None, got -1.0"),
        ({"learn": {"learning_rate_vae": 0.0}}, "learn.learning_rate_vae must be > 0, got 0.0"),
    ],
)
def test_wrong_options_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "bcq", **config})
