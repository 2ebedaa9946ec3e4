"""Distributions over actions, compared with ``torch.distributions`` and the naive formula of a squashed normal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as reference
from torch import Tensor
from torch.distributions import Normal
from torch.testing import assert_close

from lightning_ding.rl import (
    Categorical,
    DiagonalGaussian,
    HybridDistribution,
    MultiCategorical,
    distribution_of,
    epsilon_greedy,
    epsilon_greedy_distribution,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
)

LEGAL = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 1]])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gaussian(seed: int) -> tuple[DiagonalGaussian, Any]:
    mu, sigma = normal(5, 3, seed=seed), normal(5, 3, seed=seed + 1).exp()
    return DiagonalGaussian(mu, sigma), reference.Independent(reference.Normal(mu, sigma), 1)


def test_categorical_equals_that_of_torch() -> None:
    ours, other = Categorical(normal(5, 4)), Categorical(normal(5, 4, seed=1))
    theirs, their_other = reference.Categorical(logits=normal(5, 4)), reference.Categorical(logits=normal(5, 4, seed=1))
    action = torch.tensor([0, 1, 2, 3, 0])
    assert_close(ours.log_prob(action), theirs.log_prob(action))
    assert_close(ours.entropy(), theirs.entropy())
    assert_close(ours.kl(other), reference.kl_divergence(theirs, their_other))
    assert_close(ours.mode(), theirs.mode)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_entropy_and_kl_have_finite_gradients_at_any_weight(scale: float) -> None:
    # p = (1/4, 3/4, 0), q = (1/2, 1/2, 0). The gradient of the entropy in logit a is -p_a (log p_a + entropy), and that
    # of the KL p_a (log(p_a / q_a) - KL): with log 3 (1/4)(3/4) = 0.2060 both are (0.2060, -0.2060, 0) up to the sign.
    logit = torch.tensor([[0.0, math.log(3), 5.0]], requires_grad=True)
    distribution, other = (Categorical(one, torch.tensor([[1, 1, 0]])) for one in (logit, torch.zeros(1, 3)))
    expected = 0.25 * 0.75 * math.log(3) * torch.tensor([[1.0, -1.0, 0.0]])
    (of_entropy,) = torch.autograd.grad(scale * distribution.entropy().sum(), logit, retain_graph=True)
    (of_kl,) = torch.autograd.grad(scale * distribution.kl(other).sum(), logit)
    assert_close(of_entropy / scale, expected)
    assert_close(of_kl / scale, -expected)


def test_diagonal_gaussian_equals_that_of_torch() -> None:
    (ours, theirs), (other, their_other) = gaussian(0), gaussian(7)
    action = normal(5, 3, seed=20)
    assert_close(ours.log_prob(action), theirs.log_prob(action))
    assert_close(ours.entropy(), theirs.entropy())
    assert_close(ours.kl(other), reference.kl_divergence(theirs, their_other))
    assert_close(ours.mode(), theirs.mean)


def test_multi_categorical_is_independent_dimensions() -> None:
    logits, others = [normal(5, 3), normal(5, 2, seed=1)], [normal(5, 3, seed=2), normal(5, 2, seed=3)]
    ours, other = MultiCategorical(logits), MultiCategorical(others)
    theirs, their_others = ([reference.Categorical(logits=x) for x in xs] for xs in (logits, others))
    action = torch.tensor([[0, 1], [1, 0], [2, 1], [0, 0], [1, 1]])
    assert_close(ours.log_prob(action), theirs[0].log_prob(action[:, 0]) + theirs[1].log_prob(action[:, 1]))
    assert_close(ours.entropy(), theirs[0].entropy() + theirs[1].entropy())
    kl = [reference.kl_divergence(p, q) for p, q in zip(theirs, their_others, strict=True)]
    assert_close(ours.kl(other), kl[0] + kl[1])
    assert_close(ours.mode(), torch.stack([logit.argmax(1) for logit in logits], dim=1))


def test_hybrid_distribution_is_its_parts_together() -> None:
    choice, other_choice = Categorical(normal(5, 4)), Categorical(normal(5, 4, seed=1))
    args, other_args = gaussian(2)[0], gaussian(9)[0]
    ours = HybridDistribution(choice, args)
    action = {"action_type": torch.tensor([0, 1, 2, 3, 0]), "action_args": normal(5, 3, seed=20)}
    expected = choice.log_prob(action["action_type"]) + args.log_prob(action["action_args"])
    assert_close(ours.log_prob(action), expected)
    assert_close(ours.entropy(), choice.entropy() + args.entropy())
    assert_close(ours.kl(HybridDistribution(other_choice, other_args)), choice.kl(other_choice) + args.kl(other_args))
    assert_close(ours.mode(), {"action_type": choice.mode(), "action_args": args.mu})


def test_categorical_draws_actions_as_often_as_they_are_probable() -> None:
    probability = torch.tensor([0.1, 0.2, 0.7])
    draws = Categorical(probability.log().expand(20000, 3)).sample(np.random.default_rng(0))
    assert_close(draws.bincount() / 20000, probability, rtol=0, atol=0.015)  # 4 standard errors: 0.0131


def test_diagonal_gaussian_draws_with_its_mean_and_standard_deviation() -> None:
    mu, sigma = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    draws = DiagonalGaussian(mu.expand(20000, 2), sigma.expand(20000, 2)).sample(np.random.default_rng(0))
    assert_close(draws.mean(0), mu, rtol=0, atol=0.1)
    assert_close(draws.std(0), sigma, rtol=0.03, atol=0)


def test_dimensions_of_a_multi_categorical_action_are_drawn_each_on_its_own() -> None:
    # fair coins: each of the four pairs in a quarter of the draws
    draws = MultiCategorical([torch.zeros(20000, 2)] * 2).sample(np.random.default_rng(0))
    shares = (2 * draws[:, 0] + draws[:, 1]).bincount() / 20000
    assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.015)


def test_hybrid_distribution_draws_both_parts() -> None:
    sure = torch.tensor([[-50.0, 50.0]])
    action = HybridDistribution(Categorical(sure), DiagonalGaussian(torch.ones(1, 2), torch.full((1, 2), 1e-6))).sample(
        np.random.default_rng(0)
    )
    assert action["action_type"].tolist() == [1]
    assert_close(action["action_args"], torch.ones(1, 2), rtol=0, atol=1e-4)


@pytest.mark.parametrize("distribution", [Categorical(normal(9, 4)), gaussian(0)[0]])
def test_equal_generators_draw_equal_actions(distribution: Any) -> None:
    first, again, other = (distribution.sample(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (torch.equal(first, again), torch.equal(first, other)) == (True, False)


def test_illegal_actions_have_no_probability_and_are_never_sampled() -> None:
    logit = torch.tensor([0.0, 1000.0, -1000.0]).expand(3, 3)
    distribution = Categorical(logit, LEGAL)
    assert_close(distribution.log_p.exp(), torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]))
    rng = np.random.default_rng(0)
    taken = torch.stack([distribution.sample(rng) for _ in range(200)] + [distribution.mode()])
    assert bool(LEGAL.expand(201, 3, 3).gather(2, taken.unsqueeze(2)).all())


def test_a_masked_categorical_is_one_over_the_legal_actions_alone() -> None:
    logit, other = normal(1, 3), normal(1, 3, seed=1)
    mask = torch.tensor([[True, False, True]])
    ours, theirs = Categorical(logit, mask), Categorical(logit[:, [0, 2]])
    assert_close(ours.entropy(), theirs.entropy())
    assert_close(ours.kl(Categorical(other, mask)), theirs.kl(Categorical(other[:, [0, 2]])))


@pytest.mark.parametrize("quantity", ["entropy", "kl", "log_prob"])
@pytest.mark.parametrize("mask", [LEGAL, torch.zeros(3, 3)])
def test_masks_give_finite_gradients_and_none_to_illegal_actions(quantity: str, mask: Tensor) -> None:
    logit = normal(3, 3).requires_grad_()
    distribution = Categorical(logit, mask)
    argument = {"entropy": (), "kl": (Categorical(normal(3, 3, seed=1), mask),), "log_prob": (torch.tensor([2, 2, 2]),)}
    value = getattr(distribution, quantity)(*argument[quantity])
    value.sum().backward()
    assert logit.grad is not None
    assert bool(value.isfinite().all() and logit.grad.isfinite().all())
    assert not logit.grad[mask == 0].any()


def test_a_row_without_any_legal_action_is_uniform() -> None:
    distribution = Categorical(normal(2, 4), torch.zeros(2, 4))
    assert_close(distribution.log_p.exp(), torch.full((2, 4), 0.25))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_work_in_half_precision(dtype: torch.dtype) -> None:
    distribution = Categorical(normal(3, 3).to(dtype), LEGAL)
    assert bool(distribution.entropy().isfinite().all())
    assert not distribution.log_p.exp()[LEGAL == 0].any()


def test_distribution_of_splits_the_mask_of_a_multi_discrete_action() -> None:
    distribution = distribution_of([torch.zeros(1, 2), torch.zeros(1, 3)], torch.tensor([[0, 1, 1, 0, 0]]))
    assert distribution.sample(np.random.default_rng(0)).tolist() == [[1, 0]]


def test_distribution_of_takes_a_multi_discrete_action_without_mask() -> None:
    assert distribution_of([torch.eye(2), torch.eye(2)]).mode().tolist() == [[0, 0], [1, 1]]


def test_distribution_of_chooses_by_what_the_network_gives() -> None:
    gauss = {"mu": torch.zeros(1, 2), "sigma": torch.ones(1, 2)}
    hybrid = {"action_type": torch.zeros(1, 3), "action_args": gauss}
    classes = [type(distribution_of(logit)) for logit in (torch.zeros(1, 3), [torch.zeros(1, 3)], gauss, hybrid)]
    assert classes == [Categorical, MultiCategorical, DiagonalGaussian, HybridDistribution]


def test_distribution_of_masks_the_choice_of_a_hybrid_action() -> None:
    gauss = {"mu": torch.zeros(1, 2), "sigma": torch.ones(1, 2)}
    distribution = distribution_of({"action_type": torch.zeros(1, 3), "action_args": gauss}, torch.tensor([[0, 0, 1]]))
    assert distribution.sample(np.random.default_rng(0))["action_type"].tolist() == [2]


def test_distribution_of_refuses_a_mask_of_continuous_actions() -> None:
    with pytest.raises(ValueError, match="action_mask must be None for a continuous action"):
        distribution_of({"mu": torch.zeros(1, 2), "sigma": torch.ones(1, 2)}, torch.ones(1, 2))


def test_log_prob_and_entropy_compile_to_the_same_numbers() -> None:
    def both(logit: Tensor, mask: Tensor, action: Tensor) -> Tensor:
        distribution = distribution_of(logit, mask)
        return distribution.log_prob(action) + distribution.entropy()

    arguments = normal(3, 3), LEGAL, torch.tensor([2, 2, 2])
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*arguments), both(*arguments))


MU = torch.tensor([[0.3, -0.5], [0.0, 1.0]], dtype=torch.float64)


LOG_SIGMA = torch.tensor([[-0.7, 0.2], [0.0, -1.0]], dtype=torch.float64)


NOISE = torch.tensor([[0.5, -1.0], [2.0, 0.1]], dtype=torch.float64)


def test_a_sample_is_squashed_by_tanh() -> None:
    action, _ = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    assert_close(action, torch.tanh(MU + LOG_SIGMA.exp() * NOISE))


def test_log_density_is_that_of_the_normal_minus_the_logarithm_of_the_slope() -> None:
    action, log_prob = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    u = MU + LOG_SIGMA.exp() * NOISE
    naive = Normal(MU, LOG_SIGMA.exp()).log_prob(u) - torch.log(1 - action**2)
    assert_close(log_prob, naive.sum(1))


def test_log_density_of_a_given_action_is_that_of_its_sample() -> None:
    action, log_prob = squashed_gaussian_sample(MU, LOG_SIGMA, NOISE)
    assert_close(squashed_gaussian_log_prob(MU, LOG_SIGMA, action), log_prob)


def test_log_density_is_exact_where_tanh_rounds_to_one() -> None:
    """At u = 20 the logarithm of the slope is 2 log 2 - 40 to the last bit; the naive formula gives infinity."""
    mu = torch.tensor([[20.0]])
    action, log_prob = squashed_gaussian_sample(mu, torch.zeros(1, 1), torch.zeros(1, 1))
    assert action.item() == 1.0
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 40), rel=1e-6)


def test_the_density_adds_up_to_one() -> None:
    action = torch.linspace(-0.99999, 0.99999, 200_001, dtype=torch.float64).unsqueeze(1)
    mu, log_sigma = torch.full_like(action, 0.3), torch.full_like(action, -0.7)
    density = squashed_gaussian_log_prob(mu, log_sigma, action).exp()
    assert torch.trapezoid(density, action.squeeze(1)).item() == pytest.approx(1.0, abs=1e-4)


def test_the_gradient_passes_through_the_sample() -> None:
    """d tanh(mu) / d mu = 1 at mu = 0 and zero noise; d log pi / d log_sigma = -1 there."""
    mu, log_sigma = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    action, log_prob = squashed_gaussian_sample(mu, log_sigma, torch.zeros(1, 1))
    assert torch.autograd.grad(action.sum(), mu, retain_graph=True)[0].item() == 1.0
    assert torch.autograd.grad(log_prob.sum(), log_sigma)[0].item() == -1.0


def test_epsilon_greedy_probabilities_by_hand() -> None:
    # two of three actions are legal, the first is the best: 1 - 0.4 + 0.4 / 2 and 0.4 / 2; then all three
    q = torch.tensor([[3.0, 1.0, -torch.inf], [0.0, 1.0, 0.5]])
    found = epsilon_greedy_distribution(q, 0.4).log_p.exp()
    assert_close(found, torch.tensor([[0.8, 0.2, 0.0], [0.4 / 3, 0.6 + 0.4 / 3, 0.4 / 3]]))


@pytest.mark.parametrize(("epsilon", "expected"), [(0.0, [[1.0, 0.0, 0.0]]), (1.0, [[0.5, 0.5, 0.0]])])
def test_epsilon_greedy_at_the_ends_of_its_range(epsilon: float, expected: list[list[float]]) -> None:
    distribution = epsilon_greedy_distribution(torch.tensor([[3.0, 1.0, -torch.inf]]), epsilon)
    assert distribution.log_p.exp().tolist() == expected
    drawn = {int(distribution.sample(np.random.default_rng(seed))) for seed in range(30)}
    assert drawn == {place for place, p in enumerate(expected[0]) if p}
    assert torch.isfinite(distribution.log_prob(torch.tensor([0]))).all()


def test_epsilon_greedy_draws_are_as_frequent_as_those_of_the_arrays() -> None:
    q = torch.tensor([[1.0, 3.0, -torch.inf, 2.0]]).expand(20_000, 4)
    mask = (q[:1] != -torch.inf).numpy().repeat(20_000, 0)
    one = epsilon_greedy_distribution(q, 0.6).sample(np.random.default_rng(0)).numpy()
    other = epsilon_greedy(q.numpy(), 0.6, np.random.default_rng(1), mask)
    shares = [np.bincount(drawn, minlength=4) / 20_000 for drawn in (one, other)]
    assert shares == [pytest.approx([0.2, 0.6, 0.0, 0.2], abs=0.015)] * 2  # four standard errors
