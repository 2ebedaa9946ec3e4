from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from lightning_ding.policy.base.normaliser import Normaliser

GAMMA = 0.5


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, 1 if np.issubdtype(dtype, np.floating) else 255, shape, dtype)


def normaliser_of(space: spaces.Space[Any], *batches: Any, **asked: Any) -> Normaliser:
    normaliser = Normaliser()
    normaliser.begin(space, **{"norm_obs": True, **asked})
    for batch in batches:
        normaliser.update(batch)
    return normaliser


def test_observations_get_mean_0_and_standard_deviation_1_of_all_batches_together() -> None:
    obs = torch.randn(100, 3) * torch.tensor([0.1, 1.0, 50.0]) + 1000
    normaliser = normaliser_of(box(3), {"obs": obs[:30]}, {"obs": obs[30:31]}, {"obs": obs[31:]})

    expected = (obs.double() - obs.double().mean(0)) / obs.double().std(0, correction=0)
    torch.testing.assert_close(normaliser.normalise_obs(obs).double(), expected, rtol=1e-3, atol=1e-3)
    assert normaliser.normalise_obs(obs).dtype == torch.float32


def test_observations_stay_within_10_and_as_they_are_before_any_was_seen() -> None:
    obs = torch.tensor([[0.5, 99.0]])

    assert normaliser_of(box(2)).normalise_obs(obs).tolist() == [[0.5, 10.0]]


def test_rows_that_are_not_finite_do_not_reach_the_statistics() -> None:
    rows = torch.tensor([[1.0], [float("nan")], [3.0], [float("inf")]])

    normaliser = normaliser_of(box(1), {"obs": rows})

    assert normaliser.state_dict()["obs.mean"].tolist() == [2.0]
    assert normaliser.state_dict()["obs.count"] == 2


SPACE = spaces.Dict(
    {
        "camera": spaces.Dict({"image": box(4, 4, 3, dtype=np.uint8), "depth.cm/pixel:0%": box(2)}),
        "speed": box(1),
        "gear": spaces.MultiBinary(2),
        "action_mask": box(2),
    }
)


def dict_obs(size: int) -> dict[str, Any]:
    image = torch.randint(0, 256, (size, 4, 4, 3), dtype=torch.uint8)
    camera = {"image": image, "depth.cm/pixel:0%": torch.rand(size, 2)}
    mask, gear = torch.ones(size, 2), torch.ones(size, 2, dtype=torch.int8)
    return {"camera": camera, "speed": torch.rand(size, 1), "gear": gear, "action_mask": mask}


def test_only_entries_of_floats_that_are_no_mask_are_normalised() -> None:
    obs = dict_obs(20)

    normal = normaliser_of(SPACE, {"obs": obs}).normalise_obs(obs)

    assert normal["camera"]["image"] is obs["camera"]["image"]
    assert normal["gear"] is obs["gear"]
    assert normal["action_mask"] is obs["action_mask"]
    for part in (normal["speed"], normal["camera"]["depth.cm/pixel:0%"]):
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), rtol=0, atol=1e-4)
        torch.testing.assert_close(part.std(0, correction=0), torch.ones(part.shape[1]), rtol=1e-3, atol=0)


def test_boxes_of_a_tuple_are_normalised_by_their_places() -> None:
    space = spaces.Tuple([spaces.Discrete(3), box(1), spaces.Tuple([box(2)])])
    obs = {"0": torch.tensor([0, 2]), "1": torch.tensor([[1.0], [3.0]]), "2": {"0": torch.tensor([[5.0, 0.0]] * 2)}}

    normal = normaliser_of(space, {"obs": obs}).normalise_obs(obs)

    assert normal["0"] is obs["0"]
    assert normal["1"].tolist() == [[-1.0], [1.0]]
    assert normal["2"]["0"].tolist() == [[0.0, 0.0]] * 2


def test_empty_normaliser_takes_whatever_statistics_a_state_dict_holds() -> None:
    obs = dict_obs(20)
    normaliser = normaliser_of(SPACE, norm_reward=True, discount_factor=GAMMA)
    normaliser.update({"obs": obs, **rewards([1.0, 2.0], [0, 0], [0, 0])})
    loaded = Normaliser()

    loaded.load_state_dict(normaliser.state_dict())

    one, other = normaliser.normalise_obs(obs), loaded.normalise_obs(obs)
    assert torch.equal(one["speed"], other["speed"])
    assert torch.equal(one["camera"]["depth.cm/pixel:0%"], other["camera"]["depth.cm/pixel:0%"])
    batch = {"reward": torch.ones(3)}
    assert torch.equal(normaliser.normalise_batch(batch)["reward"], loaded.normalise_batch(batch)["reward"])
    assert torch.equal(copy.deepcopy(loaded).normalise_obs(obs)["speed"], one["speed"])


def test_statistics_are_not_dropped_by_a_state_without_them() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key.*obs\.count"):
        normaliser_of(box(1)).load_state_dict({})


@pytest.mark.parametrize("space", [box(4, dtype=np.uint8), spaces.Discrete(3), spaces.Dict({"action_mask": box(2)})])
def test_spaces_with_nothing_to_normalise_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(ValueError, match="must be a Box of floats, or a Dict with one that is not called action_mask"):
        normaliser_of(space)
    normaliser_of(space, norm_obs=False)


# ------------------------------------------------------------------ rewards


def rewards(values: Any, env_id: Any, episode_id: Any) -> dict[str, Tensor]:
    return {
        "reward": torch.as_tensor(values, dtype=torch.float32),
        "env_id": torch.as_tensor(env_id),
        "episode_id": torch.as_tensor(episode_id),
    }


def test_rewards_are_divided_by_the_standard_deviation_of_the_discounted_return() -> None:
    # returns 1, 2 + 0.5 = 2.5 in env 0 and 4, then 8 of a new episode, in env 1
    data = rewards([1.0, 4.0, 2.0, 8.0], [0, 1, 0, 1], [0, 1, 0, 2])
    normaliser = normaliser_of(box(1), data, norm_obs=False, norm_reward=True, discount_factor=GAMMA)

    std = float(np.std([1.0, 2.5, 4.0, 8.0]))
    normal = normaliser.normalise_batch({"reward": torch.tensor([[3.0], [-1e9]])})["reward"]
    torch.testing.assert_close(normal, torch.tensor([[3.0 / std], [-10.0]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(10))
def test_returns_do_not_depend_on_the_split_into_batches(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, num_envs = 60, 3
    env_id = rng.integers(0, num_envs, size) if seed % 2 else np.tile(np.arange(num_envs), size // num_envs)
    reward, ends = rng.standard_normal(size).astype(np.float32), rng.random(size) < 0.2
    episode, next_episode, value, episode_id, expected = list(range(num_envs)), num_envs, [0.0] * num_envs, [], []
    for row, env in enumerate(env_id.tolist()):
        episode_id.append(episode[env])
        value[env] = GAMMA * value[env] + float(reward[row])
        expected.append(value[env])
        if ends[row]:
            episode[env], next_episode, value[env] = next_episode, next_episode + 1, 0.0
    cuts = sorted(rng.choice(np.arange(1, size), 4, replace=False).tolist())
    found = Normaliser()
    found.begin(box(1), norm_reward=True, discount_factor=GAMMA)
    for start, end in zip([0, *cuts], [*cuts, size], strict=True):
        rows = slice(start, end)
        found.update(rewards(reward[rows], env_id[rows], np.array(episode_id[rows])))
        resumed = Normaliser()
        resumed.begin(box(1), norm_reward=True, discount_factor=GAMMA)
        resumed.load_state_dict(found.state_dict())
        resumed.load_episode_state(found.episode_state())
        found = resumed

    state = found.state_dict()
    assert state["reward.count"] == size
    assert float(state["reward.mean"]) == pytest.approx(np.mean(expected), rel=1e-9)
    assert float(state["reward.m2"] / size) == pytest.approx(np.var(expected), rel=1e-9)


def test_return_that_is_not_finite_ends_with_its_episode() -> None:
    normaliser = normaliser_of(box(1), norm_obs=False, norm_reward=True, discount_factor=GAMMA)
    normaliser.update(rewards([float("inf"), 1.0], [0, 0], [0, 0]))

    normaliser.update(rewards([1.0, 2.0, 3.0], [0, 0, 0], [1, 1, 2]))

    state = normaliser.state_dict()
    assert state["reward.count"] == 3
    assert float(state["reward.mean"]) == pytest.approx((1.0 + 2.5 + 3.0) / 3)


def test_returns_do_not_continue_from_the_episodes_of_an_earlier_fit() -> None:
    normaliser = normaliser_of(box(1), norm_obs=False, norm_reward=True, discount_factor=GAMMA)
    normaliser.update(rewards([100.0], [0], [0]))

    normaliser.begin(box(1), norm_reward=True, discount_factor=GAMMA)  # a collector counts its episodes from 0 again
    normaliser.update(rewards([2.0], [0], [0]))

    assert float(normaliser.state_dict()["reward.mean"]) == pytest.approx((100.0 + 2.0) / 2)


def test_statistics_without_their_option_raise_an_error() -> None:
    with pytest.raises(ValueError, match="norm_obs must be True for a policy that was trained with it, got False"):
        normaliser_of(box(1)).begin(box(1))


def test_no_transitions_add_nothing() -> None:
    normaliser = Normaliser()
    normaliser.begin(spaces.Box(-1, 1, (3,)), norm_obs=True, norm_reward=True)
    none = torch.zeros(0, dtype=torch.int64)
    normaliser.update({"obs": torch.zeros(0, 3), "reward": torch.zeros(0), "env_id": none, "episode_id": none})
    assert not normaliser.has_statistics


def test_observations_of_double_precision_are_shifted_in_it() -> None:
    """Time stamps, which single precision counts in steps of 128 seconds."""
    normaliser = normaliser_of(box(1, dtype=np.float64), norm_obs=True)
    assert normaliser.keeps_double
    times = 1.7e9 + np.array([[0.0], [10.0], [20.0]])
    collected = normaliser.tensors({"obs": times, "reward": np.zeros(3)})
    assert [one.dtype for one in collected.values()] == [torch.float64, torch.float32]
    normaliser.update(collected)

    found = normaliser.normalise_obs(collected["obs"])
    torch.testing.assert_close(found, torch.tensor([[-1.5], [0.0], [1.5]]).float() * (2 / 3) ** 0.5)
    assert normaliser.needs_double
    assert not normaliser_of(box(1, dtype=np.float32), norm_obs=True).keeps_double


def test_entries_of_double_precision_that_are_not_normalised_become_those_of_single_precision() -> None:
    mask = spaces.Box(0, 1, (2,), np.float64)
    normaliser = normaliser_of(spaces.Dict({"at": box(1, dtype=np.float64), "action_mask": mask}), norm_obs=True)
    found = normaliser.normalise_obs({"at": torch.zeros(3, 1).double(), "action_mask": torch.ones(3, 2).double()})
    assert {part.dtype for part in found.values()} == {torch.float32}
