"""Random network distillation and intrinsic curiosity on numbers worked out by hand, and against slow loops.

The networks of the first part are set so that the target's feature of an observation o is 2 o and the prediction 3 o
(for o >= 0). The score of next observations 1 and 2 is therefore 1 and 4, and the loss 2.5. With gamma = 0.5 the
discounted sums of these scores are 1 and 4.5: their standard deviation is 1.75.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.reward_model import ActionEncoding, ICMConfig, ICMRewardModel, RNDConfig, RNDRewardModel

STEPS = {
    "obs": torch.tensor([[0.0], [1.0]]),
    "next_obs": torch.tensor([[1.0], [2.0]]),
    "action": torch.tensor([0, 1]),
    "reward": torch.tensor([10.0, 20.0]),
    "env_id": torch.tensor([0, 0]),
    "episode_id": torch.tensor([0, 1]),  # the intrinsic sum continues in the next episode
}


def rnd(gamma: float = 0.5, **config: Any) -> RNDRewardModel:
    """Return a model with the weights that the first docstring describes."""
    section = {"obs_shape": 1, "action_shape": 2}
    model = RNDRewardModel(RNDConfig(hidden_size_list=[1], **config), section, gamma)
    for part, factor in ((model.target, 2.0), (model.predictor, 3.0)):
        for parameter in part.parameters():
            nn.init.constant_(parameter, float(parameter.ndim > 1))  # weights 1, biases 0
        nn.init.constant_(part.head.layers[-1].weight, factor)  # type: ignore[arg-type]
    return model


def test_rnd_score_is_the_squared_error_for_the_next_observation() -> None:
    model = rnd(obs_norm=False)
    assert_close(model.score(STEPS), torch.tensor([1.0, 4.0]))
    loss, report = model.loss(STEPS)
    assert_close(loss, torch.tensor(2.5))
    assert report.keys() == {"reward_model_loss"}


def test_rnd_trains_the_predictor_and_not_the_target() -> None:
    model = rnd(obs_norm=False)
    model.loss(STEPS)[0].backward()
    # d/dw of (w o - 2 o)^2 / 2 over o = 1, 2 at w = 3: (1 * 1 + 2 * 2) = 5
    assert_close(model.predictor.head.layers[-1].weight.grad, torch.tensor([[5.0]]))
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.target.parameters())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [10 + 1 / 1.75, 20 + 4 / 1.75]),
        ({"intrinsic_reward_weight": 3.5}, [10 + 2, 20 + 8]),
        ({"intrinsic_reward_type": "assign"}, [1 / 1.75, 4 / 1.75]),
        ({"intrinsic_reward_norm": "none"}, [11, 24]),
        ({"intrinsic_reward_norm": "minmax"}, [10, 21]),
        ({"extrinsic_reward_norm": True, "extrinsic_reward_norm_max": 20.0}, [0.5 + 1 / 1.75, 1 + 4 / 1.75]),
    ],
)
def test_reward_joins_the_score_and_the_reward_of_the_env(config: dict[str, Any], expected: list[float]) -> None:
    model = rnd(obs_norm=False, **config)
    model.add(STEPS)
    assert_close(model.reward(model.score(STEPS), STEPS["reward"]), torch.tensor(expected, dtype=torch.float32))


def test_minmax_is_of_each_minibatch() -> None:
    model = rnd(obs_norm=False, intrinsic_reward_norm="minmax", intrinsic_reward_type="assign")
    scores = torch.tensor([[1.0, 3.0, 2.0], [10.0, 10.0, 30.0]])
    assert_close(model.reward(scores, torch.zeros(2, 3)), torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]))


def test_discounted_sums_of_each_env_continue_from_call_to_call() -> None:
    model = rnd(obs_norm=False)
    model.add(STEPS)
    model.add(STEPS)  # sums 1 + 4.5 / 2 = 3.25 and 4 + 3.25 / 2 = 5.625
    sums = torch.tensor([1.0, 4.5, 3.25, 5.625], dtype=torch.float64)
    assert_close(model.return_statistics.std, sums.std(correction=0))
    other = rnd(obs_norm=False)
    other.add(STEPS)
    state, kept = other.rank_state(), other.state_dict()
    resumed = rnd(obs_norm=False)
    resumed.load_state_dict(kept)
    resumed.load_rank_state(state)
    resumed.add(STEPS)
    assert torch.equal(resumed.return_statistics.m2, model.return_statistics.m2)


def test_observations_are_normalised_and_clamped() -> None:
    model = rnd(obs_norm_clamp_max=2.0)
    model.add({**STEPS, "next_obs": torch.tensor([[0.0], [2.0]])})  # mean 1, standard deviation 1
    assert model.normalise_obs(torch.tensor([[0.0], [2.0], [9.0], [-99.0]])).reshape(-1).tolist() == [-1, 1, 2, -5]


def test_entries_of_a_dict_are_normalised_by_their_own_statistics() -> None:
    shapes = {"a": 1, "b": {"c": (2, 2)}, "kind": {"kind": "one_hot", "sizes": (3,)}, "action_mask": 2}
    model = RNDRewardModel(RNDConfig(), {"obs_shape": shapes, "action_shape": 2}, 0.9)
    obs = {"a": torch.tensor([[1.0], [3.0]]), "b": {"c": torch.stack([torch.zeros(2, 2), torch.ones(2, 2)])}}
    obs |= {"kind": torch.tensor([0, 2]), "action_mask": torch.ones(2, 2)}
    model.add({**STEPS, "obs": obs, "next_obs": obs})
    normal = model.normalise_obs(obs)
    assert normal["a"].tolist() == [[-1.0], [1.0]]
    assert normal["b"]["c"].tolist() == [[-1.0] * 4, [1.0] * 4]
    assert normal["kind"].tolist() == [0, 2]
    assert torch.isfinite(model.score({"next_obs": obs})).all()


def test_observations_that_are_not_finite_stay_out_of_the_statistics() -> None:
    model = rnd()
    model.add({**STEPS, "next_obs": torch.tensor([[math.nan], [2.0]])})
    assert model.normalise_obs(torch.tensor([[2.0]])).tolist() == [[0.0]]
    assert torch.isfinite(model.return_statistics.mean)


def test_images_have_rewards() -> None:
    model = RNDRewardModel(RNDConfig(), {"obs_shape": (1, 40, 40), "action_shape": 2}, 0.9)
    obs = torch.randint(0, 256, (3, 1, 40, 40), dtype=torch.uint8)
    steps = {"next_obs": obs, "env_id": torch.zeros(3, dtype=torch.long)}
    model.add(steps)
    assert model.score(steps).shape == (3,)
    assert model.score(steps).std() > 0


# ---------------------------------------------------------------------------------------------------- curiosity


def slow_losses(
    model: ICMRewardModel, batch: dict[str, Tensor], choices: list[int] | None
) -> tuple[float, list[float]]:
    """Return the inverse loss and the forward errors, one transition at a time, from eq. 2 to 6 of the paper."""
    inverse, errors = 0.0, []
    for row in range(len(batch["reward"])):
        before, after = (model.encoder(batch[name][row : row + 1])[0] for name in ("obs", "next_obs"))
        said = model.inverse_model(torch.cat([before, after])[None])[0]
        action = batch["action"][row]
        if choices is None:
            encoded = action
            inverse += float(((said - action) ** 2).mean())
        else:
            taken, parts, start = action.reshape(-1).tolist(), [], 0
            for size, choice in zip(choices, taken, strict=True):
                inverse -= float(torch.log(torch.softmax(said[start : start + size], 0)[choice]))
                parts.append(torch.eye(size)[choice])
                start += size
            encoded = torch.cat(parts)
        predicted = model.forward_model(torch.cat([before, encoded])[None])[0]
        errors.append(0.5 * float(((predicted - after) ** 2).sum()))
    return inverse / len(errors), errors


@pytest.mark.parametrize(
    ("section", "choices"),
    [
        ({"obs_shape": 3, "action_shape": 4}, [4]),
        ({"obs_shape": 3, "action_shape": (2, 3)}, [2, 3]),
        ({"obs_shape": 3, "action_shape": 2, "action_low": None}, None),
        ({"obs_shape": 3, "action_shape": 2, "action_low": None, "action_space": "discrete"}, [2]),
    ],
)
def test_icm_losses_are_those_of_a_slow_loop(section: dict[str, Any], choices: list[int] | None) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    config = ICMConfig(hidden_size_list=[7, 5], obs_norm=False, reverse_scale=3.0)
    model = ICMRewardModel(config, section, 0.9)
    action = (
        rng.uniform(-1, 1, (6, 2)).astype(np.float32)
        if choices is None
        else rng.integers(choices, size=(6, len(choices)))
    )
    if choices is not None and len(choices) == 1:
        action = action[:, 0]
    batch = {name: torch.from_numpy(rng.standard_normal((6, 3), dtype=np.float32)) for name in ("obs", "next_obs")}
    batch |= {"action": torch.from_numpy(action), "reward": torch.zeros(6)}
    inverse, errors = slow_losses(model, batch, choices)
    loss, report = model.loss(batch)
    assert_close(report["inverse_loss"].item(), inverse, rtol=1e-5, atol=1e-6)
    assert_close(report["forward_loss"].item(), sum(errors) / 6, rtol=1e-5, atol=1e-6)
    assert_close(loss.item(), 3.0 * inverse + sum(errors) / 6, rtol=1e-5, atol=1e-6)
    assert_close(model.score(batch), torch.tensor(errors), rtol=1e-5, atol=1e-6)


def test_icm_forgets_what_actions_cannot_change() -> None:
    """A number that is noise gets a small reward; where the action moves an entry, the inverse model learns it."""
    torch.manual_seed(0)
    model = ICMRewardModel(ICMConfig(hidden_size_list=[16], obs_norm=False), {"obs_shape": 1, "action_shape": 2}, 0.9)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        obs, action = torch.randn(64, 1), torch.randint(2, (64,))
        batch = {"obs": obs, "next_obs": obs + 2.0 * action[:, None] - 1, "action": action}
        loss, report = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert report["inverse_loss"] < 0.1  # log 2 = 0.69 by chance
    known, strange = model.score(batch).mean(), model.score({**batch, "action": 1 - action}).mean()
    assert strange > 5 * known


def test_hybrid_actions_are_refused() -> None:
    shape = {"action_type_shape": 2, "action_args_shape": 1}
    with pytest.raises(ValueError, match=r"model.action_shape must be discrete or continuous with a reward model"):
        ActionEncoding({"action_shape": shape})
