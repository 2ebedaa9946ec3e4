"""Rewards from ranked trajectories: numbers worked out by hand, pairs against a slow oracle, and what is learned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.policy import create_policy
from lightning_ding.reward_model import DREXConfig, TREXConfig, TREXRewardModel
from lightning_ding.reward_model.preference import Pairs, draw_pairs
from tests.reward_model.cases import fit, make as make_run

SECTION = {"obs_shape": 1, "action_shape": 2}
LENGTHS, RANKS = [7, 9, 12, 8], [2, 0, 1, 0]


class Identity(TREXRewardModel):
    """The reward of an observation is the observation."""

    def _rewards(self, obs: Any) -> Any:
        return obs[:, 0]


def write_ranked(file: Path, episodes: list[Any], rewards: list[float]) -> str:
    """Write episodes of CartPole's shapes; all steps of one have a reward."""
    count = [len(one) - 1 for one in episodes]
    ends = np.zeros(sum(count), bool)
    ends[np.cumsum(count) - 1] = True
    columns: Any = {"obs": np.concatenate([one[:-1] for one in episodes]).astype(np.float32)}
    columns["next_obs"] = np.concatenate([one[1:] for one in episodes]).astype(np.float32)
    columns["reward"] = np.repeat(np.asarray(rewards, np.float32), count)
    more: Any = {"action": np.zeros(sum(count), int), "terminated": np.zeros_like(ends), "truncated": ends}
    np.savez(file, **columns, **more, action_n=np.asarray(2), action_start=np.asarray(0))
    return str(file)


def rising(speed: float, length: int) -> Any:
    return np.cumsum(np.full((length + 1, 4), speed), 0)


def bound(file: str, kind: str = "trex", **section: Any) -> Any:
    torch.manual_seed(0)
    keys = {"type": kind, "data_path": file, "min_snippet_length": 2, "hidden_size_list": [16], **section}
    policy = create_policy({"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}, "reward_model": keys})
    policy.seed(0)
    policy.learner.rewards.begin()
    return policy


# ---------------------------------------------------------------------------------------------------- the loss


def test_loss_is_the_cross_entropy_of_the_summed_rewards() -> None:
    """Sums of -1 and 1: the worse has 1 / (1 + e^2) of the preference. Sums of 2 and 0: the wrong way round."""
    model = Identity(TREXConfig(data_path="unused"), SECTION, 0.9)
    obs = torch.tensor([[[-1.0, 0.0, 9.0], [0.5, 0.5, 9.0]], [[2.0, 9.0, 9.0], [1.0, -3.0, 2.0]]])[..., None]
    seen = torch.tensor([[[1.0, 1, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 1]]])
    loss, report = model.loss({"obs": obs, "seen": seen})
    assert_close(loss, torch.tensor((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2))
    assert report["preference_accuracy"] == 0.5


def test_bounded_gives_the_policy_the_sigmoid_and_learns_from_the_sums() -> None:
    configs = (TREXConfig(data_path="unused", bounded=bounded) for bounded in (False, True))
    plain, bounded = (Identity(config, SECTION, 0.9) for config in configs)
    obs = torch.tensor([[0.0], [math.log(3.0)], [-math.log(3.0)]])
    assert_close(bounded.score({"obs": obs}), torch.tensor([0.5, 0.75, 0.25]))
    assert_close(plain.score({"obs": obs}), obs[:, 0])
    batch = {"obs": obs[[0, 1]].view(1, 2, 1, 1), "seen": torch.ones(1, 2, 1)}
    assert_close(bounded.loss(batch)[0], plain.loss(batch)[0])


def test_loss_and_gradient_are_those_of_one_pair_after_the_other() -> None:
    """The oracle has the form of the authors' code: two sums as logits, and the better part as the label."""
    torch.manual_seed(1)
    model = TREXRewardModel(
        TREXConfig(data_path="unused", hidden_size_list=[5]), {"obs_shape": 3, "action_shape": 2}, 1
    )
    obs, counts = torch.randn(4, 2, 6, 3), torch.tensor([[3, 6], [1, 1], [6, 2], [4, 5]])
    seen = (torch.arange(6) < counts[..., None]).float()
    model.loss({"obs": obs, "seen": seen})[0].backward()
    ours = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    total = torch.zeros(())
    for pair, (one, other) in zip(obs, counts.tolist(), strict=True):
        sums = [model._rewards(part[:count]).sum() for part, count in zip(pair, (one, other), strict=True)]
        total = total + nn.functional.cross_entropy(torch.stack(sums)[None], torch.tensor([1])) / 4
    total.backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        assert_close(mine, parameter.grad)


# ---------------------------------------------------------------------------------------------------- the pairs


def pairs_of(**keys: Any) -> tuple[Pairs, Any]:
    config = TREXConfig(data_path="unused", **{"num_trajs": 300, "num_snippets": 500, "min_snippet_length": 3, **keys})
    bounds = np.concatenate([[0], np.cumsum(LENGTHS)])
    return draw_pairs(bounds, np.array(RANKS), config, np.random.default_rng(0)), bounds


def test_pairs_are_parts_of_trajectories_of_two_ranks_by_the_rules_of_the_paper() -> None:
    """A slow oracle looks at each pair alone."""
    pairs, bounds = pairs_of(max_snippet_length=6)
    assert len(pairs) == 800
    seen = set()
    for place in range(800):
        rows = [
            [pairs.start[place, part] + pairs.stride[place, part] * step for step in range(pairs.count[place, part])]
            for part in range(2)
        ]
        worse, better = (int(np.searchsorted(bounds, one[0], "right")) - 1 for one in rows)
        assert RANKS[worse] < RANKS[better]
        for one, episode in zip(rows, (worse, better), strict=True):
            assert bounds[episode] <= one[0] <= one[-1] < bounds[episode + 1]
        first = [one[0] - bounds[episode] for one, episode in zip(rows, (worse, better), strict=True)]
        strides = pairs.stride[place].tolist()
        assert strides[0] == strides[1]
        if place < 300:  # whole trajectories: the next step would be outside
            assert strides[0] in (3, 4, 5, 6)
            for one, episode in zip(rows, (worse, better), strict=True):
                assert one[-1] + strides[0] >= bounds[episode + 1]
            assert max(first) <= 5
        else:
            assert strides[0] == 2
            assert len(rows[0]) == len(rows[1]) in (2, 3)  # every second one of 3 to 6 steps
            assert first[0] <= first[1]
        seen.add((worse, better))
    assert seen == {(1, 2), (3, 2), (1, 0), (3, 0), (2, 0)}


def test_all_lengths_occur() -> None:
    pairs, _ = pairs_of(num_trajs=0, max_snippet_length=100)
    assert set(pairs.count[:, 0].tolist()) == {2, 3, 4, 5}  # of 3 to 9 steps, the shorter one's length


def test_ranks_are_those_of_the_returns_the_order_or_the_noise(tmp_path: Path) -> None:
    episodes = [rising(1, 4) for _ in range(4)]
    file = write_ranked(tmp_path / "ranked.npz", episodes, [2.0, 1.0, 2.0, 0.5])
    kinds: list[tuple[str, dict[str, Any], list[int]]] = [
        ("trex", {}, [2, 1, 2, 0]),
        ("trex", {"ranking": "order"}, [0, 1, 2, 3]),
        ("drex", {"num_trajs_per_bin": 2}, [0, 0, 1, 1]),
    ]
    for kind, keys, ranks in kinds:
        assert bound(file, kind, **keys).reward_model.ranks(load_dataset(file)).tolist() == ranks


def test_lesson_has_the_observations_of_its_pairs(tmp_path: Path) -> None:
    episodes = [np.arange(5 * 4).reshape(5, 4) + 100.0 * number for number in range(2)]
    file = write_ranked(tmp_path / "ranked.npz", episodes, [1.0, 2.0])
    model = bound(file, num_snippets=1).reward_model
    model.pairs = Pairs(np.array([[0, 5], [1, 4]]), np.array([[2, 1], [1, 2]]), np.array([[3, 3], [2, 2]]))
    found = model.lesson(torch.tensor([1, 0]))
    assert found["seen"].tolist() == [[[1, 0], [1, 1]], [[1, 1], [1, 0]]]
    kept = found["obs"][..., 0][found["seen"] > 0]
    assert kept.tolist() == [4, 100, 108, 0, 12, 104]


# ---------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("kind", ["trex", "drex"])
def test_learned_reward_ranks_trajectories_that_it_has_not_seen(kind: str, tmp_path: Path) -> None:
    """The better trajectories rise faster; so do those that are faster than all demonstrations."""
    episodes = [rising(speed, 20) for speed in (0.0, 0.02, 0.04, 0.06)]
    file = write_ranked(tmp_path / "ranked.npz", episodes, [0.0, 1.0, 2.0, 3.0])
    keys: dict[str, Any] = {"num_snippets": 2000, "learning_rate": 0.01, "max_snippet_length": 20}
    keys |= {"num_trajs_per_bin": 1} if kind == "drex" else {}
    policy = bound(file, kind, **keys)
    policy.learner.rewards.train()
    model = policy.reward_model
    returns = [
        float(model.score({"obs": torch.from_numpy(rising(speed, 20)).float()}).sum())
        for speed in (-0.01, 0.01, 0.03, 0.05, 0.08)
    ]
    assert returns == sorted(returns)
    assert len(set(returns)) == 5
    assert policy.learner.rewards.pop_report()["preference_accuracy"] > 0.9


def test_model_learns_once_and_before_the_policy(tmp_path: Path) -> None:
    file = write_ranked(tmp_path / "ranked.npz", [rising(speed, 5) for speed in (0.0, 1.0)], [0.0, 1.0])
    policy = bound(file, num_snippets=50, batch_size=8)
    calls = list[int]()
    rewards, loss = policy.learner.rewards, policy.reward_model.loss
    policy.reward_model.loss = lambda batch: calls.append(len(batch["seen"])) or loss(batch)  # type: ignore[func-returns-value]
    rewards.train()
    rewards.train()
    assert calls == [8] * 7  # one pass through 50 pairs
    again = bound(file, num_snippets=50)
    again.load_state_dict(policy.state_dict())
    again.reward_model.loss = None  # a loaded model is not trained again
    again.learner.rewards.train()
    assert bool(again.reward_model.is_trained)
    more = bound(file, num_snippets=50, batch_size=8, update_per_collect=3)
    loss, seen = more.reward_model.loss, list[int]()
    more.reward_model.loss = lambda batch: seen.append(1) or loss(batch)  # type: ignore[func-returns-value]
    more.learner.rewards.train()
    assert len(seen) == 3


def test_mistakes_are_named(tmp_path: Path) -> None:
    file = write_ranked(tmp_path / "ranked.npz", [rising(1, 4), rising(1, 6)], [3.0, 2.0])
    with pytest.raises(
        ValueError, match="data_path must be a data set with trajectories of at least two ranks, got '1 of 2'"
    ):
        bound(file)
    with pytest.raises(ValueError, match=r"min_snippet_length must be at most .* shortest trajectory \(4\), got 5"):
        bound(file, ranking="order", min_snippet_length=5)
    with pytest.raises(ValueError, match="data_path must be a data set of ranked trajectories with trex, got ''"):
        bound("")
    with pytest.raises(ValueError, match="num_trajs_per_bin must be a divisor of the number of trajectories"):
        bound(file, "drex", num_trajs_per_bin=3)
    for keys, message in (
        ({"num_snippets": 0}, "num_snippets must be >= 1 without num_trajs, got 0"),
        ({"max_snippet_length": 9}, r"max_snippet_length must be >= min_snippet_length \(50\), got 9"),
        ({"clear_buffer_per_iters": 2}, "clear_buffer_per_iters must be 1 with drex"),
        ({"num_trajs_per_bin": 0}, "num_trajs_per_bin must be >= 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            DREXConfig(**keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["dqn_trex", "ppo_drex", "dqn_red"])
def test_normalised_observations_are_refused(case: str, tmp_path: Path) -> None:
    policy, datamodule = make_run(case, tmp_path)
    datamodule._norm_asked["norm_obs"] = True
    with pytest.raises(ValueError, match=r"norm_obs must be False with reward_model\.type"):
        fit(policy, datamodule, tmp_path, 1)


def test_policy_learns_from_the_rewards_of_the_observations(tmp_path: Path) -> None:
    policy, datamodule = make_run("dqn_trex", tmp_path)
    assert isinstance(datamodule, ReplayDataModule)
    fit(policy, datamodule, tmp_path, 1)
    batch = datamodule.buffer.sample(8)  # type: ignore[union-attr]
    expected = policy.reward_model.score({"obs": batch["obs"]})  # type: ignore[union-attr, operator]
    assert_close(policy.learner.rewards.estimate(dict(batch))["reward"], expected)
    assert len(set(expected.tolist())) > 1
