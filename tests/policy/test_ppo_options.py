"""Options of PPO on numbers worked out by hand: the scale of the critic, separate optimizers, noise on the mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.config import deep_merge
from lightning_ding.policy import PPOPolicy
from lightning_ding.utils import private_api

Config = dict[str, Any]
GAUSSIAN: Config = {"action_space": "continuous", "action_shape": 1, "sigma_type": "fixed", "fixed_sigma_value": 1.0}
TWO_RATES: Config = {"learning_rate_actor": 0.5, "learning_rate_critic": 0.25}


def make_policy(model: Config | None = None, **learn: Any) -> Any:
    torch.manual_seed(0)
    section = {"obs_shape": 2, "action_space": "discrete", "action_shape": 2, "encoder_hidden_size_list": [4]}
    section |= {"activation": "tanh", **(model or {})}
    settings = {"epoch_per_collect": 1, "batch_size": None, "adv_norm": False, "grad_clip_norm": None, **learn}
    policy = PPOPolicy({"discount_factor": 0.5, "model": section, "learn": settings})
    policy.seed(0)
    return policy


def make_rollout(policy: Any, reward: list[float], ends: bool = True) -> Config:
    """Return one-step episodes that terminate, or one episode that continues."""
    size = len(reward)
    obs = torch.linspace(-1, 1, 2 * size + 2).reshape(size + 1, 2)
    output = policy.collect_mode.forward(obs[:-1])
    ended = torch.full((size,), ends)
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": output["drawn"],
        "log_prob": output["log_prob"],
        "reward": torch.tensor(reward),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "env_id": torch.zeros(size, dtype=torch.long),
        "episode_id": torch.arange(size) if ends else torch.zeros(size, dtype=torch.long),
    }


def learning_data(policy: Any, rollout: Config) -> Config:
    data: Config = policy._learning_data(dict(rollout), rl.time_major(rollout["env_id"], rollout["episode_id"]))
    return data


def values(policy: Any, obs: Tensor) -> Tensor:
    """Return the critic's values in units of the reward."""
    with torch.no_grad():
        found: Tensor = policy._returns_of(policy._values(obs))
    return found


# The scale of the critic


def test_with_symlog_targets_are_logarithms_and_advantages_are_in_units_of_the_reward() -> None:
    policy = make_policy(value_norm="symlog")
    layer = policy.model.critic_output
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(math.log(4.0))  # symexp of it is 3
    data = learning_data(policy, make_rollout(policy, [7.0, -1.0]))
    # terminal steps: the returns are 7 and -1, the advantages 7 - 3 and -1 - 3
    assert data["advantage"].tolist() == pytest.approx([4.0, -4.0], rel=1e-5)
    assert data["return"].tolist() == pytest.approx([math.log(8.0), -math.log(2.0)], rel=1e-5)
    data = learning_data(policy, make_rollout(policy, [1.0], ends=False))
    assert data["advantage"].tolist() == pytest.approx([1 + 0.5 * 3 - 3], rel=1e-5)
    policy._learn(make_rollout(policy, [7.0, -1.0]))
    assert policy.return_statistics.count == 0


def test_popart_trains_on_standardised_returns_and_keeps_values_when_their_statistics_change() -> None:
    policy = make_policy(value_norm="popart")
    policy.updater.minimise = lambda *args, **kwargs: {"approx_kl": torch.zeros(())}  # so only the statistics change
    rollout = make_rollout(policy, [1.0, 5.0])
    before = values(policy, rollout["obs"])
    policy._learn(dict(rollout))
    # the mean is 3 and the standard deviation 2
    data = learning_data(policy, rollout)
    assert data["return"].tolist() == pytest.approx([-1.0, 1.0], rel=1e-5)
    assert_close(values(policy, rollout["obs"]), before, rtol=1e-5, atol=1e-5)
    assert_close(data["value"], (before - 3) / 2, rtol=1e-5, atol=1e-5)
    assert_close(data["advantage"], rollout["reward"] - before, rtol=1e-5, atol=1e-5)
    policy._learn(make_rollout(policy, [9.0, 9.0, 9.0]))
    assert policy.return_statistics.mean.item() == pytest.approx(33 / 5)
    assert_close(values(policy, rollout["obs"]), before, rtol=1e-5, atol=1e-5)


def test_popart_divides_by_no_less_than_a_smallest_deviation() -> None:
    policy = make_policy(value_norm="popart")
    policy._learn(make_rollout(policy, [3.0, 3.0 + 1e-6]))
    assert learning_data(policy, make_rollout(policy, [4.0]))["return"].item() == pytest.approx(1e4, rel=1e-2)


def test_rescaled_layer_gives_the_same_numbers_for_any_statistics() -> None:
    weight, bias, x = torch.randn(1, 3), torch.randn(1), torch.randn(5, 3)
    old, new = torch.tensor([4.0, 3.0]), torch.tensor([-1.0, 0.5])
    before = (x @ weight.T + bias) * old[1] + old[0]
    rl.rescale_output(weight, bias, *old, *new)
    assert_close((x @ weight.T + bias) * new[1] + new[0], before, rtol=1e-5, atol=1e-5)


def test_symexp_is_the_inverse_of_symlog() -> None:
    x = torch.tensor([-1000.0, -1.0, 0.0, 1e-4, 3.0])
    assert_close(rl.symexp(rl.symlog(x)), x)
    assert rl.symlog(torch.tensor([math.e - 1, 1 - math.e])).tolist() == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("value_norm", [True, False, "symlog", "popart"])
def test_every_scale_learns_the_value_of_a_constant_return(value_norm: Any) -> None:
    policy = make_policy(value_norm=value_norm, learning_rate=0.05, value_weight=1.0)
    for _ in range(100):
        policy._learn(make_rollout(policy, [20.0, 20.0, 18.0, 22.0]))
    assert values(policy, make_rollout(policy, [0.0] * 4)["obs"]).mean().item() == pytest.approx(20, abs=2)


# Separate optimizers


def gradients(policy: Any, batch: Config) -> dict[str, Tensor]:
    loss, _ = policy.loss(batch)
    names, parameters = zip(*policy.model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_actor_and_critic_step_with_their_own_rates() -> None:
    sgd = {"type": "sgd", "eps": 1e-5}
    policy = make_policy({"share_encoder": False}, optimizer=sgd, entropy_weight=0.1, value_norm=False, **TWO_RATES)
    batch = learning_data(policy, make_rollout(policy, [1.0, 5.0, -2.0]))
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters()}
    gradient, total = gradients(policy, batch), policy.loss(batch)[0].item()
    report = policy._update(dict(batch))
    assert report["total_loss"].item() == pytest.approx(total, rel=1e-5)
    assert {"policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"} <= report.keys()
    for name, one in policy.model.named_parameters():
        rate = 0.25 if name.startswith("critic") else 0.5
        assert_close(one.detach(), before[name] - rate * gradient[name], rtol=1e-5, atol=1e-6)
    assert sum(name.startswith("critic") for name in before) == 4  # an encoder and an output layer


def test_each_optimizer_clips_its_own_gradient() -> None:
    sgd = {"type": "sgd", "eps": 1e-5}
    policy = make_policy({"share_encoder": False}, optimizer=sgd, grad_clip_norm=0.01, value_norm=False, **TWO_RATES)
    batch = learning_data(policy, make_rollout(policy, [100.0, -300.0]))
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters()}
    policy._update(dict(batch))
    moved = {name: one.detach() - before[name] for name, one in policy.model.named_parameters()}
    for is_critic, rate in ((True, 0.25), (False, 0.5)):
        steps = [one.flatten() for name, one in moved.items() if name.startswith("critic") == is_critic]
        assert torch.cat(steps).norm().item() == pytest.approx(0.01 * rate, rel=1e-3)


def test_schedule_of_the_step_size_holds_for_both_optimizers() -> None:
    schedule = {"type": "linear", "unit": "env_step", "decay": 100}
    policy = make_policy({"share_encoder": False}, lr_scheduler=schedule, **TWO_RATES)
    policy.progress.env_step = 50
    policy.learn_mode.forward(make_rollout(policy, [1.0, 2.0]))
    assert [one.param_groups[0]["lr"] for one in policy.updater.optimizers] == pytest.approx([0.25, 0.125])


@pytest.mark.parametrize(
    ("model", "learn", "message"),
    [
        (
            {},
            TWO_RATES,
            "model.share_encoder must be False with learning_rate_actor and learning_rate_critic, got True",
        ),
        ({}, {"learning_rate_actor": 0.1}, "learning_rate_actor must be set with learn.learning_rate_critic"),
        ({}, {"learning_rate_critic": 0.1}, "learn.learning_rate_actor must be set with learn.learning_rate_critic"),
        ({}, {**TWO_RATES, "learning_rate_critic": 0.0}, "learn.learning_rate_critic must be > 0 or None, got 0.0"),
        ({}, {**TWO_RATES, "learning_rate": 0.1}, "learn.learning_rate must be left at its default"),
        ({}, {"rpo_alpha": 0.5}, "learn.rpo_alpha must be 0 for discrete actions, which have no mean, got 0.5"),
        ({}, {"rpo_alpha": -1.0}, "learn.rpo_alpha must be >= 0, got -1.0"),
    ],
)
def test_options_that_do_not_fit_are_refused(model: Config, learn: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(model, **learn)


# Noise on the mean


def test_loss_takes_the_density_around_the_shifted_mean() -> None:
    policy = make_policy(GAUSSIAN, value_weight=0.0, clip_ratio=100.0)
    with torch.no_grad():
        policy.model.actor.mu.weight.zero_()
        policy.model.actor.mu.bias.zero_()
    batch = {
        "obs": torch.zeros(1, 2),
        "action": torch.tensor([[1.0]]),
        "log_prob": torch.zeros(1),
        "value": torch.zeros(1),
        "advantage": torch.ones(1),
        "return": torch.zeros(1),
    }
    density = [math.exp(-0.5 * (1 - mean) ** 2) / math.sqrt(2 * math.pi) for mean in (0.0, 0.5)]
    assert policy.loss(batch)[0].item() == pytest.approx(-density[0], rel=1e-5)
    assert policy.loss({**batch, "mean_noise": torch.tensor([[0.5]])})[0].item() == pytest.approx(-density[1], rel=1e-5)


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_updates_draw_uniform_noise_and_acting_does_not(is_hybrid: bool) -> None:
    shape = {"action_shape": {"action_type_shape": 2, "action_args_shape": 3}, "action_space": "hybrid"}
    model = GAUSSIAN | (shape if is_hybrid else {"action_shape": 3})
    policy, plain = make_policy(model, rpo_alpha=0.25), make_policy(model)
    rollout = make_rollout(policy, [1.0, 2.0] * 200)
    assert torch.equal(rollout["log_prob"], make_rollout(plain, [1.0, 2.0] * 200)["log_prob"])
    seen: list[Config] = []

    def spy(loss: Any, batch: Config) -> Config:
        seen.append(batch)
        return {"approx_kl": torch.zeros(())}

    policy.updater.minimise = spy
    for _ in range(2):
        policy._learn(dict(rollout))
    first, second = (batch["mean_noise"] for batch in seen)
    assert first.shape == (400, 3)
    assert not torch.equal(first, second)
    assert (first.min().item(), first.max().item()) == pytest.approx((-0.25, 0.25), abs=0.01)
    assert first.mean().item() == pytest.approx(0.0, abs=0.02)
    logit = {"mu": torch.zeros(400, 3), "sigma": torch.ones(400, 3)}
    whole = {"action_type": torch.zeros(400, 2), "action_args": logit} if is_hybrid else logit
    entropy = policy._actor_terms(whole, seen[0])[1]
    assert_close(entropy, policy._actor_terms(whole, {**seen[0], "mean_noise": torch.zeros(400, 3)})[1])


def test_options_together_learn_the_same_in_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_api, "_compile", lambda graph, fakes: lambda tensors: graph(*tensors))
    model = GAUSSIAN | {"share_encoder": False}
    learn = {"rpo_alpha": 0.5, "value_norm": "popart", "learning_rate_actor": 0.01, "learning_rate_critic": 0.02}
    weights = []
    for compiles in (True, False):
        torch.manual_seed(0)
        base = {"compile": compiles, "model": model | {"obs_shape": 2, "encoder_hidden_size_list": [16]}}
        policy: Any = PPOPolicy(deep_merge(base, {"learn": {**learn, "epoch_per_collect": 2, "batch_size": 4}}))
        policy.seed(0)
        for _ in range(2):
            policy._learn(make_rollout(policy, [1.0, 5.0, -2.0, 3.0]))
        assert (policy.updater.compile_seconds > 0) == compiles
        weights.append(dict(policy.model.state_dict()))
    assert_close(weights[0], weights[1], rtol=0, atol=1e-5)
