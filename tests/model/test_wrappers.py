"""Wrappers of networks for policy classes in DI-engine's form."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import ContinuousQAC, model_wrap


class Fixed(nn.Module):
    """A network that returns what it was given."""

    def __init__(self, **output: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.output = output

    def forward(self, obs: Any = None) -> dict[str, Any]:
        return self.output


LOGIT = torch.tensor([[0.0, 2.0, 1.0]] * 4000)
MASK = torch.tensor([[1, 0, 1]] * 4000)


def shares(action: Tensor) -> dict[int, float]:
    return {choice: number / len(action) for choice, number in sorted(Counter(action.tolist()).items())}


def test_wrapper_passes_everything_to_the_network() -> None:
    network = Fixed(logit=LOGIT)
    wrapped = model_wrap(model_wrap(network, wrapper_name="base"), wrapper_name="argmax_sample")
    assert list(wrapped.parameters()) == list(network.parameters())
    assert wrapped.state_dict().keys() == network.state_dict().keys()
    wrapped.eval()
    assert not network.training
    wrapped.reset()
    assert copy.deepcopy(wrapped).layer is not network.layer
    assert wrapped(None).keys() == {"logit", "action"}


def test_best_legal_action_is_chosen() -> None:
    assert shares(model_wrap(Fixed(logit=LOGIT), "argmax_sample").forward(None)["action"]) == {1: 1.0}
    network = Fixed(logit=LOGIT, action_mask=MASK)
    assert shares(model_wrap(network, "argmax_sample").forward(None)["action"]) == {2: 1.0}
    assert torch.equal(network.output["logit"], LOGIT)
    action = model_wrap(Fixed(logit=[LOGIT, -LOGIT]), "argmax_sample").forward(None)["action"]
    assert [shares(one) for one in action] == [{1: 1.0}, {0: 1.0}]


def test_actions_are_drawn_with_the_probabilities_of_the_logits() -> None:
    torch.manual_seed(0)
    found = shares(model_wrap(Fixed(logit=LOGIT), "multinomial_sample").forward(None)["action"])
    expected = LOGIT[0].softmax(0).tolist()
    assert found == pytest.approx(dict(enumerate(expected)), abs=0.03)
    found = shares(model_wrap(Fixed(logit=LOGIT, action_mask=MASK), "multinomial_sample").forward(None)["action"])
    assert found == pytest.approx({0: 1 / (1 + torch.e), 2: torch.e / (1 + torch.e)}, abs=0.03)


@pytest.mark.parametrize(
    ("eps", "expected"), [(0.0, {1: 1.0}), (0.3, {0: 0.1, 1: 0.8, 2: 0.1}), (1.0, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3})]
)
def test_share_of_random_actions_is_epsilon(eps: float, expected: dict[int, float]) -> None:
    torch.manual_seed(0)
    wrapped = model_wrap(Fixed(logit=LOGIT), "eps_greedy_sample")
    assert shares(wrapped.forward(None, eps=eps)["action"]) == pytest.approx(expected, abs=0.03)
    with pytest.raises(TypeError, match="forward needs the argument 'eps' for the choice of actions"):
        wrapped.forward(None)


def test_random_actions_are_legal() -> None:
    torch.manual_seed(0)
    for name in ("eps_greedy_sample", "eps_greedy_multinomial_sample"):
        wrapped = model_wrap(Fixed(logit=LOGIT, action_mask=MASK), name)
        assert shares(wrapped.forward(None, eps=1.0)["action"]) == pytest.approx({0: 0.5, 2: 0.5}, abs=0.03)


def test_gaussian_actions_are_drawn_or_the_mean() -> None:
    torch.manual_seed(0)
    logit = {"mu": torch.full((4000, 1), 2.0), "sigma": torch.full((4000, 1), 0.5)}
    assert_close(model_wrap(Fixed(logit=logit), "deterministic_sample").forward(None)["action"], logit["mu"])
    action = model_wrap(Fixed(logit=logit), "reparam_sample").forward(None)["action"]
    assert (action.mean().item(), action.std().item()) == (pytest.approx(2.0, abs=0.05), pytest.approx(0.5, abs=0.05))


def test_noise_of_actions_is_clipped() -> None:
    torch.manual_seed(0)
    network = Fixed(action=torch.full((4000, 1), 0.9))
    noise = {"noise_kwargs": {"mu": 0.0, "sigma": 0.1}, "noise_range": {"min": -0.05, "max": 0.5}}
    action = model_wrap(network, "action_noise", **noise).forward(None)["action"]
    assert (action.min().item(), action.max().item()) == (pytest.approx(0.85), 1.0)
    free = model_wrap(network, "action_noise", action_range=None)
    assert free.forward(None, sigma=0.2)["action"].std().item() == pytest.approx(0.2, abs=0.02)
    assert_close(network.output["action"], torch.full((4000, 1), 0.9))
    critic = model_wrap(ContinuousQAC(3, 1), "action_noise")
    inputs = {"obs": torch.zeros(2, 3), "action": torch.zeros(2, 1)}
    assert critic.forward(inputs, mode="compute_critic").keys() == {"q_value"}


def test_target_is_copied_at_intervals_or_moved() -> None:
    network = nn.Linear(1, 1)

    def target(**options: Any) -> Any:
        made = nn.Linear(1, 1)
        nn.init.zeros_(made.weight)
        return model_wrap(made, "target", **options)

    with torch.no_grad():
        network.weight.fill_(1.0)
    copied = target(update_type="assign", update_kwargs={"freq": 3})
    seen = []
    for _ in range(4):
        copied.update(network.state_dict())
        seen.append(copied.weight.item())
        with torch.no_grad():
            network.weight.add_(1.0)
    assert seen == [0, 0, 3, 3]
    copied.reset(target_update_count=2)
    copied.update(network.state_dict())
    assert copied.weight.item() == 5
    moved = target(update_type="momentum", update_kwargs={"theta": 0.25})
    moved.update(network.state_dict())
    assert moved.weight.item() == 1.25
    moved.update(network.state_dict(), direct=True)
    assert moved.weight.item() == 5


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("argmax_sampel", {}, "there is no wrapper 'argmax_sampel'; did you mean 'argmax_sample'"),
        ("target", {"update_type": "assignn", "update_kwargs": {}}, "update_type must be 'assign' or 'momentum'"),
        ("target", {"update_type": "assign", "update_kwargs": {"theta": 1}}, "a mapping with 'freq' for 'assign'"),
        ("action_noise", {"noise_type": "ou"}, "noise_type must be 'gauss'; DDPGPolicy has Ornstein-Uhlenbeck noise"),
    ],
)
def test_wrapper_that_cannot_be_is_refused(name: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_wrap(nn.Linear(1, 1), name, **options)
