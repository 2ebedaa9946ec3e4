"""Collectors take the collect mode of a policy in DI-engine's form: a namedtuple or an EasyDict of functions."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from easydict import EasyDict
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding.di_engine.rl_utils import get_gae_with_default_last_value
from lightning_ding.worker import EpisodeSerialCollector, NaiveReplayBuffer, SampleSerialCollector
from tests.toys.envs import CountingEnv
from tests.worker.collector.by_env_toys import ByEnvPolicy, SummingPolicy, row_of
from tests.worker.collector.sampling_toys import MODES, PlacePolicy, counting_envs, logs

KINDS = [SampleSerialCollector, EpisodeSerialCollector]


def as_logged(row: Any) -> tuple[Any, ...]:
    obs, action, reward, after, terminated, truncated = row
    return obs, action, reward, after, terminated or truncated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [lambda mode: mode, lambda mode: EasyDict(mode._asdict())])
def test_policy_acts_on_a_dict_of_raw_observations(kind: Any, form: Any) -> None:
    policy = ByEnvPolicy()
    collector = kind(env=counting_envs(), policy=form(policy.collect_mode))

    collector.collect(6, 0, policy_kwargs={"eps": 0.5})

    assert list(policy.seen[0]) == [0, 1, 2]
    assert all(type(obs) is np.ndarray and obs.shape == (3,) for obs in policy.seen[0].values())
    assert policy.kwargs == [{"eps": 0.5}] * len(policy.kwargs)


@pytest.mark.parametrize("autoreset", MODES)
def test_sample_collector_returns_a_list_of_what_the_envs_did(autoreset: AutoresetMode) -> None:
    env, policy = counting_envs(autoreset), ByEnvPolicy(n_sample=6)
    collector = SampleSerialCollector(env=env, policy=policy.collect_mode)

    data = [collector.collect(train_iter=number) for number in range(4)]

    assert [len(part) for part in data] == [6] * 4
    rows = [row_of(one) for part in data for one in part]
    for number, logged in enumerate(logs(env)):
        own = [row for row in rows if row[0][0] == number]
        assert len(own) > 4
        assert own == [as_logged(row) for row in logged[: len(own)]]


def test_transition_has_the_entries_of_the_policy_and_those_of_the_collector() -> None:
    collector = SampleSerialCollector(env=counting_envs(), policy=ByEnvPolicy(n_sample=6).collect_mode)

    first = collector.collect(6, 7, level_seeds=[4, 5, 6])[0]

    assert isinstance(first["obs"], torch.Tensor)
    assert (first["done"], first["reward"].shape, first["reward"].dtype) == (True, (1,), torch.float32)
    assert {name: first[name] for name in ("collect_iter", "env_id", "episode_id", "seed")} == {
        "collect_iter": 7,
        "env_id": 0,
        "episode_id": 0,
        "seed": 4,
    }


@pytest.mark.parametrize("autoreset", MODES)
def test_timestep_is_that_of_one_env_in_the_form_of_di_engine(autoreset: AutoresetMode) -> None:
    policy = ByEnvPolicy()
    env = SyncVectorEnv([functools.partial(CountingEnv, 5, (2,), (False, True))], autoreset_mode=autoreset)

    SampleSerialCollector(env=env, policy=policy.collect_mode).collect(4)

    assert [step._fields for step in policy.timesteps] == [("obs", "reward", "done", "info")] * 4
    assert [step.obs.tolist() for step in policy.timesteps] == [[5, 0, 1], [5, 0, 2], [5, 1, 1], [5, 1, 2]]
    assert [step.reward.tolist() for step in policy.timesteps] == [[1], [2], [1], [2]]
    assert [step.done for step in policy.timesteps] == [False, True, False, True]
    assert [step.info["TimeLimit.truncated"] for step in policy.timesteps] == [False, False, False, True]


class ReportingEnv(CountingEnv):
    """Reports its step in the info."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"step": self._step, "score": {"total": 10.0 * self._step}}


@pytest.mark.parametrize("autoreset", MODES)
def test_info_is_that_of_the_env(autoreset: AutoresetMode) -> None:
    policy = ByEnvPolicy()
    env = SyncVectorEnv([functools.partial(ReportingEnv, n, (n + 1,)) for n in range(2)], autoreset_mode=autoreset)

    SampleSerialCollector(env=env, policy=policy.collect_mode).collect(6)

    for step in policy.timesteps:
        assert step.info["step"] == step.obs[2]
        assert step.info["score"] == {"total": 10 * step.obs[2]}


def test_random_collecting_gives_the_policy_random_actions_of_its_own_shape() -> None:
    policy = ByEnvPolicy()

    data = SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode).collect(30, random_collect=True)

    assert not policy.seen
    assert {output["action"].shape for output in policy.outputs} == {(1,)}
    assert {int(one["action"]) for one in data} == {0, 1, 2, 3}


# ------------------------------------------------------------------ pieces


def test_pieces_end_with_their_episode_or_when_they_are_long_enough() -> None:
    policy = ByEnvPolicy(n_sample=6)  # 6 samples of 3 envs: pieces of 2
    SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode).collect(30)

    assert max(map(len, policy.pieces)) == 2
    for piece in policy.pieces:
        assert len({(int(one["env_id"]), int(one["episode_id"])) for one in piece}) == 1
        assert len(piece) == 2 or piece[-1]["done"]


@pytest.mark.parametrize("policy", [ByEnvPolicy(), ByEnvPolicy(n_sample=6, traj_len_inf=True)])
def test_pieces_are_whole_episodes_without_an_n_sample_or_with_traj_len_inf(policy: ByEnvPolicy) -> None:
    SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode).collect(30)

    assert all([one["done"] for one in piece] == [False] * (len(piece) - 1) + [True] for piece in policy.pieces)
    assert max(map(len, policy.pieces)) == 5


def test_pieces_are_at_least_as_long_as_a_sample() -> None:
    policy = ByEnvPolicy(n_sample=3, unroll_len=4)
    SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode).collect(30)
    assert max(map(len, policy.pieces)) == 4


def test_returns_over_several_steps_do_not_depend_on_where_pieces_are_cut() -> None:
    env, policy = counting_envs(), SummingPolicy(n_sample=3, nstep=3)  # pieces of one transition
    data = SampleSerialCollector(env=env, policy=policy.collect_mode).collect(60)

    assert len(data) == 60
    lengths = {(number, episode): (5, 3, 1)[episode % 3] for number in [2] for episode in range(9)}
    checked = 0
    for one in data:
        number, episode, step = (int(value) for value in one["obs"])
        if number == 2:  # rewards 1, 2, 3, ... to the end of the episode
            last = min(step + 3, lengths[number, episode])
            assert float(one["reward"]) == sum(range(step + 1, last + 1))
            checked += 1
    assert checked > 10


def test_on_policy_data_are_those_of_the_call() -> None:
    policy = ByEnvPolicy(n_sample=12, on_policy=True)
    collector = SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode)

    for train_iter in range(5):
        data = collector.collect(train_iter=train_iter)
        assert len(data) == 12
        assert {one["collect_iter"] for one in data} == {train_iter}


def test_on_policy_pieces_end_with_their_episode_or_at_full_length() -> None:
    policy = ByEnvPolicy(n_sample=12, on_policy=True)  # 12 samples of 3 envs: pieces of 4
    collector = SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode)

    for _ in range(5):
        collector.collect()

    assert {len(piece) for piece in policy.pieces if not piece[-1]["done"]} == {4}


class BootstrappingPolicy(ByEnvPolicy):
    """Learns as DI-engine's A2C: the last transition of a piece that goes on has the value after the others."""

    def get_train_sample(self, transitions: list[dict[str, Any]]) -> list[Any]:
        valued = [{**one, "value": torch.ones(1)} for one in transitions]
        done = bool(valued[-1]["done"])
        assert done or len(valued) > 1  # a single step whose episode goes on has nothing to learn from
        return get_gae_with_default_last_value(valued, done, 0.99, 0.95)


def test_a_policy_that_bootstraps_from_its_last_transition_gets_enough_samples() -> None:
    policy = BootstrappingPolicy(n_sample=12, on_policy=True)
    collector = SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode)

    for _ in range(5):
        data = collector.collect()
        assert len(data) == 12
        assert all("adv" in one for one in data)


def test_surplus_of_off_policy_data_is_kept_for_the_next_call() -> None:
    env, policy = counting_envs(), ByEnvPolicy(n_sample=7)
    collector = SampleSerialCollector(env=env, policy=policy.collect_mode)

    rows = [row_of(one) for _ in range(6) for one in collector.collect()]

    assert len(rows) == 42
    for number, logged in enumerate(logs(env)):
        own = [row for row in rows if row[0][0] == number]
        assert own == [as_logged(row) for row in logged[: len(own)]]


def test_a_piece_never_joins_the_episodes_before_and_after_a_reset() -> None:
    policy = ByEnvPolicy(n_sample=12)  # pieces of 4
    collector = SampleSerialCollector(env=counting_envs(), policy=policy.collect_mode)

    collector.collect(2)  # ends within pieces
    collector.reset_env()
    collector.collect(20)

    assert all(len({int(one["episode_id"]) for one in piece}) == 1 for piece in policy.pieces)
    first = [one for piece in policy.pieces for one in piece if one["env_id"] == 2 and one["episode_id"] > 2]
    assert first[0]["obs"][2] == 0


class FaultyEnv(CountingEnv):
    """Reports a fault at every third step, which ends its episode."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        is_fault = self._step == 3
        return obs, reward, terminated, truncated or is_fault, {"abnormal": is_fault}


@pytest.mark.parametrize("autoreset", MODES)
def test_a_step_with_a_fault_is_left_out_and_ends_the_piece(autoreset: AutoresetMode) -> None:
    policy = ByEnvPolicy(n_sample=20)
    env = SyncVectorEnv([functools.partial(FaultyEnv, 0, (9,))], autoreset_mode=autoreset)

    data = SampleSerialCollector({"env_fault": "drop"}, env, policy.collect_mode).collect(6)

    assert [one["obs"][2].item() for one in data] == [0, 1] * 3
    assert not any(one["done"] for one in data)


# ------------------------------------------------------------------ episodes


@pytest.mark.parametrize("autoreset", MODES)
def test_episode_collector_returns_lists_of_transitions(autoreset: AutoresetMode) -> None:
    env, policy = counting_envs(autoreset), ByEnvPolicy(n_episode=9)
    collector = EpisodeSerialCollector(env=env, policy=policy.collect_mode)

    episodes = collector.collect(None, 3, {"eps": 0.5})

    assert len(episodes) == 9
    assert all([one["done"] for one in episode] == [False] * (len(episode) - 1) + [True] for episode in episodes)
    for number, logged in enumerate(logs(env)):
        own = [row_of(one) for episode in episodes for one in episode if one["env_id"] == number]
        assert own == [as_logged(row) for row in logged[: len(own)]]
    assert policy.kwargs[0] == {"eps": 0.5}
    assert not policy.pieces


def test_episode_collector_returns_a_list_of_training_samples() -> None:
    policy = ByEnvPolicy()
    collector = EpisodeSerialCollector({"get_train_sample": True}, counting_envs(), policy.collect_mode)

    samples = collector.collect(6)

    assert [id(one) for one in samples] == [id(one) for piece in policy.pieces for one in piece]
    assert len(policy.pieces) == 6


class ShapingEnvs(SyncVectorEnv):
    """Adds 10 to all rewards of an episode in place."""

    def reward_shaping(self, env_id: int, transitions: Any) -> None:
        for one in transitions:
            assert one["env_id"] == env_id
            one["reward"] = one["reward"] + 10


def test_reward_shaping_may_change_the_transitions_in_place() -> None:
    env = ShapingEnvs([functools.partial(CountingEnv, 0, (2,))])
    policy = ByEnvPolicy()

    (episode,) = EpisodeSerialCollector({"reward_shaping": True}, env, policy.collect_mode).collect(1)

    assert [float(one["reward"]) for one in episode] == [11, 12]


# ------------------------------------------------------------------ options


@pytest.mark.parametrize("kind", KINDS)
def test_transform_obs_gives_the_policy_float32_tensors(kind: Any) -> None:
    policy = ByEnvPolicy()
    kind({"transform_obs": True}, counting_envs(), policy.collect_mode).collect(3)
    assert {(type(obs), obs.dtype) for obs in policy.seen[0].values()} == {(torch.Tensor, torch.float32)}


class SpoilingPolicy(ByEnvPolicy):
    """Overwrites the observations that it acts on."""

    def forward(self, data: dict[int, Any], **kwargs: Any) -> dict[int, Any]:
        output = super().forward(data, **kwargs)
        for obs in data.values():
            obs[:] = -1
        return output


@pytest.mark.parametrize("kind", KINDS)
def test_deepcopy_obs_keeps_what_the_policy_overwrites_and_shares_nothing(kind: Any) -> None:
    shared = kind({}, counting_envs(), ByEnvPolicy().collect_mode).collect(6)
    copied = kind({"deepcopy_obs": True}, counting_envs(), SpoilingPolicy().collect_mode).collect(6)

    def pairs(data: Any) -> Any:
        flat = data if kind is SampleSerialCollector else [one for episode in data for one in episode]
        return [(one, two) for one, two in itertools.pairwise(flat) if one["episode_id"] == two["episode_id"]]

    assert all(one["next_obs"] is two["obs"] for one, two in pairs(shared))
    assert not any(one["next_obs"] is two["obs"] for one, two in pairs(copied))
    assert all(one["obs"].min() >= 0 for one, _ in pairs(copied))
    assert pairs(copied)


@pytest.mark.parametrize("name", ["transform_obs", "deepcopy_obs"])
def test_options_of_the_form_are_refused_for_a_policy_that_acts_on_batches(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be False for a policy that acts on batches, because"):
        SampleSerialCollector({name: True}, counting_envs(), PlacePolicy().mode)


# ------------------------------------------------------------------ state, and the way to a buffer


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_collector_continues_with_the_same_data(kind: Any) -> None:
    collector = kind(env=counting_envs(), policy=ByEnvPolicy(n_sample=12).collect_mode)
    collector.collect(4)
    state = collector.state_dict()
    other = kind(env=counting_envs(), policy=ByEnvPolicy(n_sample=12).collect_mode)
    other.load_state_dict(state)
    other._stepper.env = collector._stepper.env

    def rows(data: Any) -> list[Any]:
        return [row_of(one) for part in data for one in ([part] if isinstance(part, dict) else part)]

    restored = other.collect(9)
    assert other.envstep > collector.envstep
    fresh = kind(env=counting_envs(), policy=ByEnvPolicy(n_sample=12).collect_mode)
    fresh.collect(4)
    assert rows(restored) == rows(fresh.collect(9))


def test_collected_lists_are_pushed_and_sampled_as_lists() -> None:
    collector = SampleSerialCollector(env=counting_envs(), policy=ByEnvPolicy(n_sample=12).collect_mode)
    buffer = NaiveReplayBuffer(seed=0)

    data = collector.collect(60)
    buffer.push(data, collector.envstep)

    found = {(tuple(row[0]), row[1:3]) for row in map(row_of, buffer.sample(60, 0, as_list=True))}
    assert found == {(tuple(row[0]), row[1:3]) for row in map(row_of, data)}


# ------------------------------------------------------------------ what is refused


def test_a_mode_that_lacks_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="got SimpleMode without process_transition, get_train_sample, reset"):
        SampleSerialCollector(env=counting_envs(), policy=type("SimpleMode", (), {"forward": print})())
    with pytest.raises(TypeError, match="policy must be a policy, its collect mode, or an object with"):
        SampleSerialCollector(env=counting_envs(), policy=3)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"action": torch.zeros(3)}, r"must return an output for each of the envs \[0, 1, 2\], got \['action'\]"),
        (torch.zeros(3), "must return an output for each of the envs .*, got Tensor"),
        ({0: 1, 1: 1, 2: 1}, "must return a mapping with 'action' for each env, got 1"),
        (
            {env_id: {"action": torch.zeros(2)} for env_id in range(3)},
            r"must return actions of shape \(3,\), got \(3, 2\)",
        ),
        ({env_id: {"action": torch.tensor(torch.nan)} for env_id in range(3)}, "'action' that is not finite"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(output: Any, message: str) -> None:
    policy = ByEnvPolicy()
    mode = policy.collect_mode._replace(forward=lambda data: output)
    with pytest.raises(ValueError, match=message):
        SampleSerialCollector(env=counting_envs(), policy=mode).collect(3)


def test_a_transition_that_is_no_mapping_is_refused() -> None:
    mode = ByEnvPolicy().collect_mode._replace(process_transition=lambda obs, output, timestep: [obs])
    with pytest.raises(TypeError, match="process_transition must return a mapping, got list"):
        SampleSerialCollector(env=counting_envs(), policy=mode).collect(3)


class BaseEnvManager:
    """Has what collectors of DI-engine use of an env manager."""

    env_num = 2

    def launch(self) -> None:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_an_env_manager_is_refused_with_what_replaces_it(kind: Any) -> None:
    with pytest.raises(TypeError, match="got BaseEnvManager; make_vector_env replaces DI-engine's env managers"):
        kind(env=BaseEnvManager())
