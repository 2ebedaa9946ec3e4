"""The measurement of a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import seed_everything
from torch import Tensor, nn

from lightning_ding.policy import A2CPolicy, DQNPolicy, SACPolicy
from lightning_ding.policy.base.config import NO_CLIP
from lightning_ding.policy.base.round import RoundLearner
from lightning_ding.policy.base.vitals import (
    RoundNotes,
    _ActivationCounter,
    _of_actor,
    _of_gradients,
    _of_observations,
    _of_values,
    vitals,
)
from tests.algorithms.table import ALGORITHMS, make_datamodule, make_policy, needs_demonstrations, state_of

QUICK = ("dqn", "rainbow", "iqn", "sac", "discrete_sac", "ppo", "recurrent_ppo", "impala")
"""Algorithms of each kind; the others are slow tests."""
ONLINE = [name for name in ALGORITHMS if make_policy(name).trains_on == "envs" and not needs_demonstrations(name)]


def numbers(found: dict[str, Tensor]) -> dict[str, Any]:
    return {name: pytest.approx(float(value), abs=1e-6) for name, value in found.items()}


def test_explained_variance_is_the_share_of_the_targets_variance_that_values_predict() -> None:
    # targets 0, 2, 4: variance 4; errors 0, 1, 0: variance 1/3
    report = {"q_value": torch.tensor([0.0, 1.0, 4.0]), "target_q_value": torch.tensor([0.0, 2.0, 4.0])}
    found = _of_values(SimpleNamespace(), report, RoundNotes())
    assert numbers(found)["explained_variance"] == 1 - (1 / 3) / 4
    assert [numbers(found)[name] for name in ("value_mean", "target_mean", "target_std")] == [5 / 3, 2, 2]


def test_values_of_a_rollout_are_in_units_of_the_reward() -> None:
    policy = SimpleNamespace(_returns_of=lambda output: 10 * output)
    notes = RoundNotes(data={"value": torch.tensor([1.0, 2.0]), "return": torch.tensor([1.0, 3.0])})
    found = _of_values(policy, {}, notes)
    assert (float(found["value_mean"]), float(found["target_mean"])) == (15, 20)


def test_constant_targets_have_no_variance_to_explain() -> None:
    report = {"q_value": torch.tensor([0.0, 1.0]), "target_q_value": torch.tensor([2.0, 2.0])}
    assert float(_of_values(SimpleNamespace(), report, RoundNotes())["explained_variance"]) == 0


def test_gradient_norms_are_averaged_and_the_clipped_ones_counted() -> None:
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1) for _ in range(2)]
    optimizers[1].param_groups[0]["params"][0].grad = torch.tensor([3.0, 4.0])
    updater = SimpleNamespace(optimizers=optimizers)
    norms = [torch.tensor(0.5), torch.tensor(1.5), torch.tensor(4.0)]
    notes = RoundNotes(norms={0: norms}, limits={0: 1.0})
    assert numbers(_of_gradients(updater, notes)) == {
        "clipped_gradients": 2 / 3,
        "grad_norm": 2.0,
        "grad_norm_1": 5.0,  # of the gradient that is left, because no update needed its norm
    }


def test_norms_of_gradients_that_are_not_clipped_are_not_counted_as_clipped() -> None:
    policy = SACPolicy({"model": {"obs_shape": 2, "action_shape": 1}, "learn": {"grad_clip_norm": 0.1}})
    policy.updater.notes = notes = RoundNotes()
    for index, clip in ((0, None), (2, NO_CLIP)):
        parameter = policy.updater.optimizers[index].param_groups[0]["params"][0]
        parameter.grad = torch.ones_like(parameter)
        policy.updater.step(parameter.sum(), index, clip or policy.updater.clip, torch.tensor(5.0))
    found = _of_gradients(policy.updater, notes)
    assert (float(found["clipped_gradients"]), float(found["grad_norm_2"])) == (1.0, 5.0)
    assert "clipped_gradients_2" not in found


def test_only_entries_that_differ_between_transitions_change() -> None:
    obs = {"a": torch.tensor([[1.0, 2.0], [1.0, 3.0]]), "action_mask": torch.tensor([[0, 1], [1, 0]])}
    found = numbers(_of_observations(obs))
    assert (found["obs_changing"], found["obs_abs_max"], found["obs_mean"]) == (0.5, 3.0, 1.75)


def test_dead_units_are_those_with_the_same_output_for_all_observations() -> None:
    weight = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0])
    x = torch.tensor([[1.0], [2.0], [100.0]]) * weight
    with _ActivationCounter() as counter:
        torch.relu(x)  # four are zero for all
        torch.tanh(x * 10)  # all are at one end
        torch.tanh(torch.cat([x[:1], -x[:1]]) * 10)  # each is at both ends
        torch.relu(torch.zeros(3, 2))  # too narrow for a hidden layer
    assert [float(one) for one in counter.dead] == [0.5, 1.0, 0.0]


def test_channels_of_images_are_units() -> None:
    image = torch.zeros(2, 8, 3, 3)
    image[1, 0, 2, 2] = 1.0
    with _ActivationCounter() as counter:
        torch.relu(image)
    assert [float(one) for one in counter.dead] == [7 / 8]


def test_dead_units_of_a_separate_critic_are_not_those_of_the_actor() -> None:
    shapes = {"obs_shape": 2, "action_shape": 2, "action_space": "discrete", "share_encoder": False}
    policy = A2CPolicy({"model": {**shapes, "encoder_hidden_size_list": [16], "activation": "tanh"}})
    rows = {"obs": torch.randn(32, 2, generator=torch.Generator().manual_seed(0)), "reward": torch.ones(32)}
    assert float(vitals(policy, rows, {}, RoundNotes())["dead_units_critic"]) < 0.5
    biases = [one for name, one in policy.model.named_parameters() if "critic" in name and name.endswith("bias")]
    with torch.no_grad():
        for bias in biases:
            bias.fill_(100.0)  # one end of the tanh, whatever is seen
    found = vitals(policy, rows, {}, RoundNotes())
    assert (float(found["dead_units_critic"]), float(found["dead_units"]) < 0.5) == (1.0, True)


def actor(**attributes: Any) -> Any:
    shape, space = attributes.pop("shape"), attributes.pop("space", None)
    model = SimpleNamespace(action_shape=shape, action_space=space)
    return SimpleNamespace(config=SimpleNamespace(model=model), **attributes)


def test_entropy_of_discrete_actions_is_a_share_of_that_of_the_uniform_policy() -> None:
    policy = actor(shape=4, space="discrete", on_policy=True)
    report = {"entropy_loss": torch.tensor(0.5 * np.log(4))}
    assert numbers(_of_actor(policy, report, None)) == {"entropy_share": 0.5}
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])  # two legal actions: log 2 is the largest
    assert numbers(_of_actor(policy, report, {"action_mask": mask})) == {"entropy_share": 1.0}
    several = actor(shape=[2, 8], space="discrete", on_policy=True)  # log 16
    assert numbers(_of_actor(several, report, None)) == {"entropy_share": 0.25}


def test_entropy_of_continuous_actions_is_a_width() -> None:
    normal = torch.distributions.Normal(0.0, 0.3).entropy()
    policy = actor(shape=2, space="continuous", on_policy=True)
    assert numbers(_of_actor(policy, {"entropy_loss": 2 * normal}, None)) == {"action_std": 0.3}
    squashed = actor(shape=2, on_policy=False, temperature=1.0, action_bounds=None)
    uniform = torch.tensor([-2 * np.log(2)])  # log density of two dimensions in [-1, 1]
    assert numbers(_of_actor(squashed, {"log_prob": uniform}, None)) == {"entropy_share": 1.0}


def test_a_report_without_tensors_is_left_alone() -> None:
    policy = actor(shape=2, space="discrete", on_policy=True)
    assert _of_actor(policy, {"entropy_loss": 0.5}, None) == {}
    assert _of_values(policy, {"q_value": 1.0, "target_q_value": 2.0}, RoundNotes()) == {}


def test_values_of_other_actions_than_the_targets_are_left_alone() -> None:
    report = {"q_value": torch.rand(4, 3), "target_q_value": torch.rand(4)}
    assert _of_values(SimpleNamespace(), report, RoundNotes()) == {}
    ensemble = {"q_value": torch.ones(2, 3), "target_q_value": torch.tensor([1.0, 2.0, 3.0])}
    assert float(_of_values(SimpleNamespace(), ensemble, RoundNotes())["target_mean"]) == 2.0


def test_empty_entries_of_observations_have_no_statistics() -> None:
    obs = {"a": torch.tensor([[1.0], [3.0]]), "b": torch.zeros(2, 0)}
    assert float(_of_observations(obs)["obs_mean"]) == 2.0
    assert _of_observations(torch.zeros(2, 0)) == {}


class OddPolicy(DQNPolicy):
    """A policy of a user."""

    temperature = 1.0


def test_round_that_cannot_be_measured_is_named_once_and_learned_from(caplog: pytest.LogCaptureFixture) -> None:
    policy = OddPolicy({"model": {"obs_shape": 2, "action_shape": 2}})
    learner, before = policy.learner, policy.rng.bit_generator.state
    for _ in range(2):
        learner.observe_next_round()
        batch = {"obs": torch.zeros(3, 2), "reward": torch.zeros(3)}
        assert learner._measure(batch, {"log_prob": torch.zeros(3), "max_entropy": "much"}) == {}
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("the rounds of OddPolicy cannot be measured")
    assert (policy.updater.notes, policy.rng.bit_generator.state) == (None, before)


def test_metric_that_the_policy_reports_itself_is_not_mixed_with_that_of_the_round() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 2, "action_shape": 2}})
    policy.learner.observe_next_round()
    found = policy.learner._measure({"obs": torch.rand(3, 2), "reward": torch.ones(3)}, {"obs_mean": torch.ones(())})
    assert "obs_std" in found
    assert "obs_mean" not in found


def test_data_age_counts_the_updates_since_collecting() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 2, "action_shape": 2}})
    policy.progress.train_iter = 10
    rows = {"obs": torch.rand(2, 3, 2), "reward": torch.tensor([[1.0, 1.0, 1.0], [-3.0, 1.0, 1.0]])}
    rows["policy_version"] = torch.tensor([[2, 2, 2], [8, 8, 8]])
    found = vitals(policy, rows, {}, RoundNotes())
    assert (float(found["data_age"]), float(found["reward_abs_max"])) == (5, 3)
    assert float(found["reward_mean"]) == pytest.approx(2 / 6)


def test_rewards_of_a_reward_model_are_left_out_and_the_axes_of_the_round_are_not() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 2, "action_shape": 2}})
    obs = torch.tensor([[[0.0, 1.0]] * 3, [[0.0, 2.0]] * 3])  # 2 minibatches of 3 observations with 2 entries
    found = vitals(policy, {"obs": obs, "reward": torch.ones(2, 3)}, {}, RoundNotes(), has_env_reward=False)
    assert float(found["obs_changing"]) == 0.5
    assert not [key for key in found if key.startswith("reward")]


def trained(name: str, make_trainer: Any) -> tuple[Any, dict[str, float]]:
    """Return the state after two epochs of a run, and its last metrics."""
    seed_everything(3, verbose=False)
    policy, datamodule = make_policy(name), make_datamodule(name, max_env_step=64, rounds_per_epoch=2)
    trainer = make_trainer(log_every_n_steps=1)
    trainer.fit(policy, datamodule)
    found = {key: float(value) for key, value in trainer.callback_metrics.items() if "per_second" not in key}
    return state_of(policy, datamodule), found


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ONLINE]
)
def test_measuring_changes_no_bit_of_a_run(name: str, make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, metrics = trained(name, make_trainer)
    monkeypatch.setattr(RoundLearner, "observe_next_round", lambda self: None)
    unseen, fewer = trained(name, make_trainer)
    assert seen == unseen
    assert {**metrics, **fewer} == metrics  # no metric changes
    assert {"learn/grad_norm", "learn/obs_changing"} <= metrics.keys() - fewer.keys()
    assert all(np.isfinite(metrics[key]) for key in metrics.keys() - fewer.keys())
