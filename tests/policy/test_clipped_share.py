"""C51 and Rainbow warn if returns lie outside their support."""

from __future__ import annotations

import warnings
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lightning_ding import rl
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import C51Policy, RainbowPolicy
from tests.toys.envs import CountingEnv

TEXT = r"lies outside \[model.v_min, model.v_max\]"
SUPPORT = torch.tensor([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.0, 1.0, 0.0),  # 0, 1, 2
        (0.5, 1.0, 0.25),  # 0.5, 1.5, 2.5
        (1.0, 0.5, 0.0),  # 1, 1.5, 2, which is the end
        (-0.5, 1.0, 0.5),  # -0.5, 0.5, 1.5
        (-9.0, 0.5, 1.0),
        (2.0, 0.0, 0.0),  # terminal at the end
        (3.0, 0.0, 1.0),
    ],
)
def test_share_beyond_the_support_is_the_mass_that_the_projection_clips(
    reward: float, discount: float, expected: float
) -> None:
    probability = torch.tensor([[0.5, 0.25, 0.25]])

    moved = rl.moved_support(torch.tensor([reward]), torch.tensor([discount]), SUPPORT)

    share = rl.share_beyond_support(moved, probability, SUPPORT)

    assert share.tolist() == [expected]


def test_returns_that_reach_the_end_of_the_support_are_inside_it_despite_rounding() -> None:
    support = torch.linspace(0, 100, 51)
    at_the_end = torch.zeros(1, 51).index_fill(1, torch.tensor(50), 1.0)

    for discount in (0.99, 0.97, 0.9, 0.7):
        moved = rl.moved_support(torch.tensor([100 * (1 - discount)]), torch.tensor([discount]), support)
        assert rl.share_beyond_support(moved, at_the_end, support).item() == 0


def make_batch(reward: float) -> dict[str, Any]:
    batch = {"obs": torch.zeros(4, 1), "next_obs": torch.zeros(4, 1), "action": torch.zeros(4, dtype=torch.long)}
    batch |= {"reward": torch.full((4,), reward), "terminated": torch.ones(4, dtype=torch.bool)}
    return batch | {"discount": torch.zeros(4), "IS": torch.ones(4)}


@pytest.mark.parametrize("kind", [C51Policy, RainbowPolicy])
@pytest.mark.parametrize(("reward", "expected"), [(10.0, 0.0), (11.0, 1.0), (-11.0, 1.0)])
def test_updates_report_the_share(kind: Any, reward: float, expected: float) -> None:
    policy = kind({"model": {"obs_shape": 1, "action_shape": 2}})

    report = policy.learn_mode.forward(make_batch(reward))

    assert report["clipped_share"].tolist() == pytest.approx([expected] * 4)


def test_an_update_moves_the_support_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = C51Policy({"model": {"obs_shape": 1, "action_shape": 2}})
    moved_support = Mock(wraps=rl.moved_support)
    monkeypatch.setattr(rl, "moved_support", moved_support)

    policy.learn_mode.forward(make_batch(1.0))

    moved_support.assert_called_once()


@pytest.mark.parametrize("kind", [C51Policy, RainbowPolicy])
def test_a_policy_warns_once_of_a_large_share(kind: Any) -> None:
    policy = kind({"model": {"obs_shape": 1, "action_shape": 2}})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.check_means({"clipped_share": 0.2})
    with pytest.warns(UserWarning, match=f"60% of the targets' mass {TEXT} = \\[-10.0, 10.0\\]"):
        policy.check_means({"clipped_share": 0.6})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.check_means({"clipped_share": 0.9})


@pytest.mark.parametrize(("v_max", "warns"), [(1.0, True), (1000.0, False)])
def test_a_run_logs_the_share_and_warns_if_it_is_large(make_trainer: Any, v_max: float, warns: bool) -> None:
    policy = C51Policy({"random_collect_size": 64, "model": {"v_min": -v_max, "v_max": v_max}})
    datamodule = ReplayDataModule(CountingEnv, num_envs=2, max_train_iter=20, n_evaluator_episode=1)
    trainer = make_trainer()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(policy, datamodule)

    assert (trainer.callback_metrics["learn/clipped_share"] > 0.25) == warns
    assert sum("lies outside" in str(one.message) for one in caught) == int(warns)
