"""Helpers under DI-engine's names give the values that its documentation describes."""

from __future__ import annotations

import functools
import logging
from collections import namedtuple
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding.di_engine import data, envs, gym_wrappers, reward_model, torch_utils, utils
from lightning_ding.di_engine.env_managers import AsyncSubprocessEnvManager, BaseEnvManager, create_env_manager
from lightning_ding.di_engine.envs import BaseEnvManagerV2

# ---------------------------------------------------------------------- nested data

Pair = namedtuple("Pair", ["obs", "name"])


def test_nested_data_become_arrays() -> None:
    given = {"a": torch.ones(2, dtype=torch.float64), "b": [1, 2], "c": [torch.ones(1), None], "d": [], "e": "text"}
    made = torch_utils.to_ndarray(given, np.float32)
    assert made["a"].dtype == made["b"].dtype == np.float32
    assert (made["b"].tolist(), made["c"][1], made["d"], made["e"]) == ([1, 2], None, None, "text")
    assert torch_utils.to_ndarray({"done": True}, np.float32) == {"done": True}
    assert isinstance(torch_utils.to_ndarray(Pair([1], "x")), Pair)
    array = np.zeros(2)
    assert torch_utils.to_ndarray(array) is not array  # envs reuse their memory
    assert torch_utils.to_ndarray([0.5]).shape == (1,)


def test_nested_data_become_tensors() -> None:
    made = torch_utils.to_tensor({"a": np.zeros(2), "b": 1, "c": True, "k": np.zeros(1)}, ignore_keys=["k"])
    assert made["a"].dtype == torch.float32
    assert (made["b"].item(), made["c"], type(made["k"])) == (1, True, np.ndarray)
    assert torch_utils.to_tensor(2, transform_scalar=False) == 2
    assert torch_utils.to_tensor([[1, 2], [3, 4]], torch.float32)[1].tolist() == [3, 4]
    assert torch_utils.to_tensor(Pair(torch.zeros(1, dtype=torch.float64), "x")).obs.dtype == torch.float64


def test_nested_data_become_lists_and_numbers() -> None:
    assert torch_utils.to_list({"a": torch.ones(1), "b": (np.zeros(2), 3)}) == {"a": [1.0], "b": ([0.0, 0.0], 3)}
    assert torch_utils.to_item({"a": torch.ones(1), "b": np.zeros(2), "c": [torch.zeros(())]}) == {"a": 1.0, "c": [0.0]}
    with pytest.raises(ValueError, match="data must be one number, got"):
        torch_utils.to_item({"b": np.zeros(2)}, ignore_error=False)
    assert torch_utils.to_item({"a": [1, np.zeros(2)], "b": (torch.ones(1),)}) == {"b": [1.0]}  # no part of a list
    assert torch_utils.unsqueeze_repeat(torch.arange(2), 3, 1).shape == (2, 3)


def test_label_smoothing_spreads_the_ratio_over_the_other_classes() -> None:
    logits, labels = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([0])
    log_p = logits.log_softmax(1)[0]
    expected = -(0.7 * log_p[0] + 0.15 * log_p[1] + 0.15 * log_p[2])
    assert_close(torch_utils.LabelSmoothCELoss(0.3)(logits, labels), expected)


def test_contrastive_loss_is_that_of_guessing_for_equal_views_and_learns() -> None:
    torch.manual_seed(0)
    loss = torch_utils.ContrastiveLoss(3, 3, heads=(1, 2), encode_shape=8)
    same = torch.ones(4, 3)
    assert_close(loss(same, same).item(), float(np.log(4)), rtol=1e-5, atol=1e-5)
    views = torch.randn(4, 3)
    optimizer = torch_utils.Adam(loss.parameters(), lr=0.01)
    first = loss(views, views).item()
    for _ in range(50):
        optimizer.zero_grad()
        loss(views, views).backward()
        optimizer.step()
    assert loss(views, views).item() < first / 2
    loss.temperature = 1e-6  # a factor of the scores, which are equal then
    assert_close(loss(views, views).item(), float(np.log(4)), rtol=1e-4, atol=1e-4)
    assert torch_utils.ContrastiveLoss((3, 64, 64), 3)(torch.zeros(2, 3, 64, 64), torch.zeros(2, 3)).shape == ()


def test_resnet18_has_its_size() -> None:
    network = torch_utils.resnet18()
    assert sum(one.numel() for one in network.parameters()) == 11_689_512
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


# ---------------------------------------------------------------------- utils


def test_minibatches_cover_the_batch_and_fill_the_last_one() -> None:
    batch = {"x": torch.arange(5), "state": {"h": torch.arange(5)}, "none": None, "args": [torch.arange(5)]}
    batch["prev_state"] = ["a", "b", "c", "d", "e"]
    parts = list(utils.split_data_generator(batch, 2, shuffle=False))
    assert [one["x"].tolist() for one in parts] == [[0, 1], [2, 3], [4, 0]]
    assert parts[2]["state"]["h"].tolist() == parts[2]["args"][0].tolist() == [4, 0]
    assert parts[0]["none"] is None
    assert parts[2]["prev_state"] == ["e", "a"]
    shuffled = torch.cat([one["x"] for one in utils.split_data_generator(batch, 5)])
    assert sorted(shuffled.tolist()) == [0, 1, 2, 3, 4]


def test_running_moments_are_those_of_all_data() -> None:
    running = utils.RunningMeanStd(epsilon=1e-12, shape=(2,))
    rows = np.random.default_rng(0).normal(size=(10, 2))
    running.update(rows[:3])
    running.update(torch.as_tensor(rows[3:]))
    assert_close(running.mean, torch.tensor(rows.mean(0), dtype=torch.float32))
    assert_close(running.std, torch.tensor(rows.std(0), dtype=torch.float32))
    running.reset()
    assert running.mean.tolist() == [0, 0]
    numbers = utils.RunningMeanStd(epsilon=1e-12)
    numbers.update(np.full(3, 2.0))
    assert (type(numbers.mean), round(numbers.mean, 6)) == (float, 2.0)
    assert_close(numbers.std, 1e-4, rtol=1e-3, atol=0)  # DI-engine's least divisor


def test_sequences_get_leading_time_and_batch() -> None:
    steps = {"reward": [torch.zeros(1), torch.ones(1)], "prev_state": ["a", "b"], "weight": 0.5}
    made = utils.timestep_collate([steps, steps, steps])
    assert made["reward"].shape[:2] == (2, 3)
    assert made["prev_state"] == [["a"] * 3, ["b"] * 3]
    assert made["weight"].tolist() == [0.5] * 3


def test_columns_of_nested_data_are_attributes() -> None:
    tree = utils.ttorch_collate([{"obs": torch.zeros(2), "logit": {"mu": torch.ones(1)}}] * 3)
    assert (tree.obs.shape, tree.logit.mu.tolist()) == ((3, 2), [1, 1, 1])


def test_seeds_repeat_random_numbers() -> None:
    def drawn() -> tuple[float, float]:
        utils.set_pkg_seed(3, use_cuda=False)
        return float(np.random.rand()), torch.rand(()).item()

    assert drawn() == drawn()


def test_ranks_of_a_single_process() -> None:
    assert (utils.get_rank(), utils.get_world_size(), utils.dist_init()) == (0, 1, (0, 1))


def test_config_of_a_rank_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "get_world_size", lambda: 2)
    cfg = {"policy": {"batch_size": 6, "learn": {"batch_size": 8}, "collect": {"n_sample": 4, "n_episode": None}}}
    share = {"batch_size": 3, "learn": {"batch_size": 4}, "collect": {"n_sample": 2, "n_episode": None}}
    assert utils.to_ddp_config(cfg).policy == share
    with pytest.raises(ValueError, match=r"policy.batch_size must be a multiple of the 2 ranks, got 3"):
        utils.to_ddp_config({"policy": {"batch_size": 3}})


def test_scheduler_changes_by_its_mode_within_the_bounds_and_waits() -> None:
    section = {"schedule_mode": "multi", "factor": 3.0, "change_range": [0, 5], "patience": 0, "cooldown": 1}
    scheduler = utils.Scheduler({**section, "optimize_mode": "max"})
    assert [scheduler.step(metric, 1.0) for metric in (1.0, 1.0, 1.0, 1.0, 2.0)] == [1, 3, 1, 3, 1]
    assert utils.Scheduler(section).step(1.0, 2.0) == 2
    since_last = utils.Scheduler({**section, "optimize_mode": "max", "cooldown": 0})
    assert [since_last.step(metric, 1.0) for metric in (3.0, 1.0, 2.0)] == [1, 3, 1]  # 2 is better than the last one
    waits = utils.Scheduler({**section, "cooldown": 2})
    assert [waits.step(1.0, 1.0) for _ in range(3)] == [1, 1, 3]  # the first two do not count
    with pytest.raises(ValueError, match="schedule_mode must be one of"):
        utils.Scheduler({"schedule_mode": "grow"})


# ---------------------------------------------------------------------- envs


def test_actions_are_mapped_to_the_bounds() -> None:
    assert envs.affine_transform(np.array([-2.0, 0.5]), min_val=-1.0, max_val=3.0).tolist() == [-1, 2]
    assert envs.affine_transform(np.array([2.0]), action_clip=False, alpha=2.0, beta=1.0).tolist() == [5]
    assert envs.affine_transform(np.array([0.5]), alpha=9.0, beta=9.0, min_val=-1.0, max_val=3.0).tolist() == [2]
    with pytest.raises(ValueError, match="min_val and max_val must be given without alpha"):
        envs.affine_transform(np.zeros(1))


class OldCount:
    """An env with the interface of gym 0.25, which counts to 2."""

    __module__ = "gym.envs.toy"
    observation_space = gym.spaces.Box(0, 2, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata: dict[str, Any] = {}  # noqa: RUF012
    seeds: list[int] = []  # noqa: RUF012

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.count = 0
        return np.zeros(1, np.float32)

    def step(self, action: int) -> Any:
        self.count += 1
        return np.full(1, self.count, np.float32), 2.0, self.count == 2, {"TimeLimit.truncated": self.count == 2}

    def close(self) -> None: ...


OldCount.__name__ = "Env"


def test_env_of_gym_is_taken_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        wrapped = [envs.DingEnvWrapper(OldCount(), {"env_wrapper": "default"}) for _ in range(2)]
    assert [one.getMessage() for one in caplog.records] == [
        "Env is an env of the package gym, which is taken as one of gymnasium"
    ]
    env = wrapped[0]
    env.seed(5, dynamic_seed=False)
    assert env.reset().tolist() == [0]
    env.step(np.array([1]))
    last = env.step(np.array([1]))
    assert (last.done, last.info["TimeLimit.truncated"], last.info["eval_episode_return"]) == (True, True, 4.0)
    assert OldCount.seeds == [5]


def test_wrapped_env_of_gym_is_taken_too() -> None:
    env = envs.DingEnvWrapper(gym_wrappers.ClipRewardWrapper(OldCount()), {"env_wrapper": "default"})
    assert env.reset().tolist() == [0]
    assert env.step(1).reward.tolist() == [1]
    manager = BaseEnvManager([lambda: gym_wrappers.ClipRewardWrapper(OldCount())])
    manager.launch()
    assert manager.step([1])[0].reward.tolist() == [1]
    manager.close()


def test_wrapper_shows_how_its_env_renders() -> None:
    env = gym_wrappers.ClipRewardWrapper(gym.make("CartPole-v1", render_mode="rgb_array"))
    spec: Any = env.spec
    assert (env.render_mode, env.metadata["render_fps"], spec.id) == ("rgb_array", 50, "CartPole-v1")
    env.close()


def test_wrappers_answer_in_the_form_of_their_env() -> None:
    old = gym_wrappers.ObsPlusPrevActRewWrapper(OldCount())
    assert old.reset()["prev_action"].tolist() == -1
    obs, reward, done, _ = old.step(1)
    assert (obs["obs"].tolist(), obs["prev_action"].tolist(), obs["prev_reward_extrinsic"].tolist()) == ([1], 1, [2])
    assert (reward, done) == (2.0, False)
    new = gym_wrappers.EvalEpisodeReturnWrapper(gym_wrappers.OldEnv(OldCount()))
    assert new.reset(seed=0)[0].tolist() == [0]
    new.step(0)
    assert new.step(0)[4]["eval_episode_return"].tolist() == [4]


def test_wrappers_change_frames_rewards_and_steps() -> None:
    stacked = gym_wrappers.FrameStackWrapper(OldCount(), 3)
    assert stacked.reset().tolist() == [[0]] * 3
    assert stacked.step(0)[0].tolist() == [[0], [0], [1]]
    assert gym_wrappers.ScaledFloatFrameWrapper(OldCount()).observation(np.ones(1)).tolist() == [0.5]
    assert gym_wrappers.ClipRewardWrapper(OldCount()).reward(-3.0) == -1
    repeated = gym_wrappers.ActionRepeatWrapper(OldCount(), 5)
    repeated.reset()
    assert repeated.step(0)[1] == 4.0  # the episode ends after two steps
    maximum = gym_wrappers.MaxAndSkipWrapper(OldCount(), 2)
    maximum.reset()
    assert maximum.step(0)[0].tolist() == [2]


def test_manager_is_stepped_by_hand() -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=2)

    with BaseEnvManager([make, make], {"type": "base"}) as manager:
        manager.seed([7, 8])
        manager.launch()
        first = manager.ready_obs
        assert (list(first), manager.env_num, manager.done) == ([0, 1], 2, False)
        manager.step({0: 1, 1: 0})
        last = manager.step(manager.random_action())
        assert last[0].done
        assert last[0].info["TimeLimit.truncated"]
        assert (last[0].obs != manager.ready_obs[0]).any()  # the last one, and the first one of the next episode
        with pytest.raises(ValueError, match="actions must be those of all 2 envs, got 1"):
            manager.step({0: 1})
        with pytest.raises(RuntimeError, match="seed must be called before the envs are made"):
            manager.seed(0)
    with pytest.raises(ValueError, match=r"seed must be a number, or numbers that are each one more .*, got \[7, 7\]"):
        manager.seed([7, 7])
    manager.seed({1: 6, 0: 5})
    assert manager.seed_of_run == 5
    again = BaseEnvManagerV2([make, make])
    again.seed(7)
    again.launch()
    assert_close(again.ready_obs, np.stack(list(first.values())))
    assert [one.env_id.item() for one in again.step([1, 0])] == [0, 1]
    again.close()


def test_manager_is_that_of_its_type() -> None:
    class Other: ...

    assert type(create_env_manager({"type": "async_subprocess"}, [Other])) is AsyncSubprocessEnvManager
    with pytest.raises(ValueError, match="env_fn must be the same for all envs, which processes make alike"):
        create_env_manager({"type": "subprocess"}, [Other, lambda: Other()]).vector_env()
    with pytest.raises(ValueError, match="type must be one of"):
        create_env_manager({"type": "pool"}, [Other])


def test_different_envs_are_made_in_turn() -> None:
    lengths = [lambda steps=steps: gym.make("CartPole-v1", max_episode_steps=steps) for steps in (3, 4)]
    manager = BaseEnvManager(lengths)
    assert [one.spec.max_episode_steps for one in manager.vector_env().envs] == [3, 4]
    manager.close()


def test_envs_in_this_process_may_have_arrays_in_their_configs() -> None:
    def make(cfg: Any) -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=int(cfg["lengths"][0]))

    manager = BaseEnvManager([functools.partial(make, {"lengths": np.array([steps, steps])}) for steps in (3, 4)])
    assert [one.spec.max_episode_steps for one in manager.vector_env().envs] == [3, 4]
    manager.close()


def test_frames_become_a_file(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    envs.save_frames_as_gif([np.zeros((4, 4, 3), np.uint8)] * 2, str(tmp_path / "a" / "film.gif"))
    assert (tmp_path / "a" / "film.gif").read_bytes().startswith(b"GIF")


# ---------------------------------------------------------------------- buffer and hindsight


def test_buffer_of_any_objects() -> None:
    buffer = data.DequeBuffer(3)
    ids = [buffer.push(number, {"kind": number % 2}).index for number in range(4)]
    assert [one.data for one in buffer] == [1, 2, 3]
    assert [one.data for one in buffer.sample(indices=[ids[2]])] == [2]
    groups = buffer.sample(2, groupby="kind")
    assert sorted(sorted(one.data for one in group) for group in groups) == [[1, 3], [2]]
    assert [one.data for one in buffer.sample(1, groupby="kind", unroll_len=2)[0]] == [1, 3]
    with pytest.raises(ValueError, match="size must be at most 3, as many as there are, got 4"):
        buffer.sample(4)
    assert len(buffer.sample(4, replace=True)) == 4
    assert len(buffer.sample(4, ignore_insufficient=True)) == 3
    assert buffer.update(ids[3], data=9)
    assert buffer.update(ids[3], meta={"kind": 5})
    assert (buffer.get(2).data, buffer.get(2).meta) == (9, {"kind": 5})  # what is not given stays
    assert not buffer.update("none")
    with pytest.raises(ValueError, match="unroll_len must be None without groupby, got 2"):
        buffer.sample(1, unroll_len=2)
    windows = data.DequeBuffer(8, sliced=True)
    for number in range(7):
        windows.push(number, {"kind": 0})
    drawn = [windows.sample(1, groupby="kind", unroll_len=3)[0] for _ in range(30)]
    assert {tuple(one.data for one in window) for window in drawn} == {(0, 1, 2), (3, 4, 5)}
    buffer.delete(ids[1])
    assert [one.data for one in buffer] == [2, 9]


def test_hindsight_goal_is_what_the_episode_achieved() -> None:
    goal = torch.tensor([1.0, 1.0])
    states = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]
    episode = [
        {"obs": torch.cat([states[place], goal]), "next_obs": torch.cat([states[place + 1], goal]), "reward": 0.0}
        for place in range(2)
    ]
    (final,) = reward_model.HerRewardModel({"her_strategy": "final"}).estimate(episode)
    assert [one["obs"].tolist() for one in final] == [[0, 0, 0, 1], [1, 0, 0, 1]]
    assert [one["reward"].item() for one in final] == [0, 1]
    made = reward_model.HerRewardModel({"her_strategy": "future", "her_replay_k": 4}).estimate(episode)
    assert [new[1]["reward"].item() for new in made] == [1] * 4  # the last step has no other future
    some = reward_model.HerRewardModel({"her_strategy": "episode", "her_replay_k": 2, "sample_per_episode": 5})
    assert [len(new) for new in some.estimate(episode)] == [5, 5]
