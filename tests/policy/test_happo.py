"""HAPPO: one agent after the other, with the ratios of those before it, against plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.model import HAVAC
from tests.policy.test_mappo import make, rollout


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_stacked_networks_equal_a_loop_over_agents(kind: Any, layer_norm: bool) -> None:
    network: Any = HAVAC(3, 2, 6, 4, kind, encoder_hidden_size_list=[8, 8], layer_norm=layer_norm)
    network.init_orthogonally(actor=1.0)
    seen = torch.randn(5, 7, 3, 2)
    logit = network.compute_actor({"agent_state": seen})["logit"]
    found = logit if kind == "discrete" else logit["mu"]
    for number, agent in enumerate(network.agents):
        assert_close(found[..., number, :], agent.net(seen[..., number, :].flatten(0, 1))[0].unflatten(0, (5, 7)))


def test_agents_learn_in_turn_from_advantages_times_the_ratios_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make("happo", learn={"batch_size": 8, "epoch_per_collect": 2, "adv_norm": False})
    data = rollout(policy)
    turns: list[tuple[Any, torch.Tensor, dict[str, torch.Tensor]]] = []
    inherited = policy._make_passes

    def passes(learned: Any, learner: int) -> Any:
        before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
        report = inherited(learned, learner)
        changed = {name for name, weight in policy.model.state_dict().items() if not torch.equal(weight, before[name])}
        turns.append((learner, learned["factor"].clone(), {name: before[name] for name in changed}))
        log_prob = policy._log_prob({"obs": data["obs"], "action": data["action"]})
        ratios.append((log_prob - data["log_prob"]).exp()[:, learner] if learner < 3 else None)
        return report

    ratios: list[Any] = []
    monkeypatch.setattr(policy, "_make_passes", passes)
    policy.learn_mode.forward(data)
    assert sorted(learner for learner, _, _ in turns) == [0, 1, 2, 3]
    assert turns[-1][0] == 3
    factor = torch.ones(16)
    for (learner, found, changed), ratio in zip(turns, ratios, strict=True):
        assert_close(found, factor)
        start = f"agents.{learner}." if learner < 3 else "critic"
        assert changed
        assert all(name.startswith(start) for name in changed)
        if learner < 3:
            factor = factor * torch.where(data["obs"]["alive"][:, learner] > 0, ratio.detach(), 1.0)
    assert not torch.equal(factor, torch.ones(16))


def test_loss_of_an_agent_is_that_of_its_own_columns() -> None:
    policy = make("happo", learn={"value_norm": False, "entropy_weight": 0.1})
    data = rollout(policy)
    learned: Any = policy._learning_data(dict(data), policy._sequences_of(data))
    learned |= {"factor": torch.linspace(0.5, 2, 16), "turn": torch.tensor([0.0, 1.0, 0.0])}
    loss, _ = policy.loss_of_actor(learned)
    living = data["obs"]["alive"][:, 1] > 0
    log_p = policy.model.compute_actor(data["obs"])["logit"][:, 1].log_softmax(-1)
    ratio = (log_p.gather(1, data["action"][:, 1:2])[:, 0] - data["log_prob"][:, 1]).exp()
    advantage = learned["advantage"][:, 1] * learned["factor"]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)[living].mean()
    entropy = -(log_p.exp() * log_p).sum(1)[living].mean()
    assert_close(loss, -surrogate - 0.1 * entropy)


def test_options_without_an_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="recompute_adv must be False for happo"):
        make("happo", recompute_adv=True)
    with pytest.raises(ValueError, match="rpo_alpha must be 0 for happo"):
        make("happo", learn={"rpo_alpha": 0.5})


def test_actors_and_critic_have_their_own_rates() -> None:
    policy = make("happo", learn={"learning_rate_actor": 1e-3, "learning_rate_critic": 2e-3})
    assert [one.param_groups[0]["lr"] for one in policy.updater.optimizers] == [1e-3, 1e-3, 1e-3, 2e-3]
    assert policy.update_per_collect == 4 * 10 * 16
