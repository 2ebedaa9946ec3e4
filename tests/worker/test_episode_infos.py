"""Numbers of the infos: one for each episode, whatever the autoreset mode."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from lightning_ding.envs import EnvStepper, make_vector_env
from lightning_ding.policy import DQNPolicy
from lightning_ding.worker import InteractionSerialEvaluator, SampleSerialCollector
from lightning_ding.worker.episodes import InfoCheck, info_statistics
from lightning_ding.worker.infos import EpisodeInfos
from tests.toys.info_env import InfoEnv

ALL: dict[str, Any] = {"wave": "last", "number": "sum", "laps": "max", "is_success": "mean"}


def values_of(statistics: Any, mode: AutoresetMode, steps: int = 10, lengths: Any = (3,)) -> list[dict[str, float]]:
    """Return the numbers of the episodes of one env in a number of steps."""
    stepper = EnvStepper(SyncVectorEnv([partial(InfoEnv, lengths=lengths)], autoreset_mode=mode))
    stepper.reset()
    infos, found = EpisodeInfos(info_statistics(statistics), 1, InfoCheck()), []
    for _ in range(steps):
        timestep = stepper.step(np.zeros(1, np.int64))
        infos.add(timestep)
        ended = timestep.terminated | timestep.truncated
        if ended.any():
            found.append({name: float(column[0]) for name, column in infos.take(timestep, ended).items()})
    return found


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("statistic", "of_three", "of_two"), [("last", 2.0, 1.0), ("mean", 2.0, 2.0), ("sum", 6.0, 4.0), ("max", 3.0, 3.0)]
)
def test_statistic_is_over_the_steps_of_each_episode(
    mode: AutoresetMode, statistic: str, of_three: float, of_two: float
) -> None:
    found = values_of({"wave": statistic}, mode, lengths=(3, 2))
    assert [one["wave"] for one in found[:3]] == [of_three, of_two, of_three]


@pytest.mark.parametrize("statistic", ["last", "mean", "sum", "max"])
def test_episode_without_a_number_has_nan_whatever_the_statistic(statistic: str) -> None:
    found = values_of({"laps": statistic}, AutoresetMode.DISABLED)
    assert [one["laps"] for one in found] == pytest.approx([0.0, np.nan, 2.0], nan_ok=True)


def test_number_without_statistic_is_the_last_one_and_success_comes_first() -> None:
    assert info_statistics(["wave"]) == info_statistics("wave") == {"wave": "last"}
    found = values_of(["wave"], AutoresetMode.SAME_STEP)
    assert [list(one) for one in found] == [["success_rate", "wave"]] * 3
    assert [one["success_rate"] for one in found] == [0.0, 1.0, 0.0]


def test_missing_number_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        values_of(["laps", "broken"], AutoresetMode.DISABLED, steps=50)  # a NaN that the env gives is meant
    assert caplog.messages == [
        "an episode ended without info['laps'], one of info_keys: means leave such episodes out; the info of its last "
        "step has ['broken', 'is_success', 'number', 'text', 'wave']"
    ]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("statistic", ["last", "mean"])
def test_number_that_none_of_ten_episodes_gives_is_an_error_that_names_the_others(
    mode: AutoresetMode, statistic: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(values_of({"lap": statistic}, mode, steps=9, lengths=(1,))) >= 4  # with steps that only reset
    assert "an episode ended without info['lap']" in caplog.text
    known = r"one of \['broken', 'is_success', ('laps', )?'number', 'text', 'wave'\], got 'lap', which none of"
    with pytest.raises(ValueError, match=rf"info_keys must be names of numbers in the info of the env, {known}"):
        values_of({"lap": statistic}, mode, steps=20, lengths=(1,))


def test_text_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"info_keys must be names of numbers, but info\['text'\] of the env is 'far'"):
        values_of(["text"], AutoresetMode.DISABLED, lengths=(1,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([""], "info_keys must be names in the info of the env"),
        ("{wave: least}", "info_keys must be names in the info of the env, .* or a mapping from names to"),
        (["return_mean"], "info_keys must be names in the info of the env, other than return_mean"),
        ({"wave": "least"}, r"info_keys\['wave'\] must be one of .*'last', 'mean', 'sum', 'max'.*, got 'least'"),
    ],
)
def test_names_and_statistics_are_checked(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        info_statistics(given)


def test_unfinished_episode_continues_from_a_state_with_the_same_statistic() -> None:
    stepper = EnvStepper(make_vector_env(partial(InfoEnv, lengths=(3,)), 1))
    stepper.reset()
    before = EpisodeInfos({"wave": "sum", "number": "max"}, 1, InfoCheck())
    before.add(stepper.step(np.zeros(1, np.int64)))
    after = EpisodeInfos({"wave": "sum", "number": "mean"}, 1, InfoCheck())
    after.load_state_dict(before.state_dict())
    for _ in range(2):
        timestep = stepper.step(np.zeros(1, np.int64))
        after.add(timestep)
    assert after.take(timestep, timestep.terminated)["wave"].tolist() == [6.0]


def policy_for(env: Any) -> DQNPolicy:
    policy = DQNPolicy({"model": {"encoder_hidden_size_list": [4]}})
    policy.build(env.single_observation_space, env.single_action_space)
    return policy


def make_collector() -> SampleSerialCollector:
    env = make_vector_env(partial(InfoEnv, lengths=(3, 2)), 1)
    collector = SampleSerialCollector(policy=policy_for(env).collect_mode)
    collector.info_keys = {"wave": "sum", "laps": "last"}
    collector.reset_env(env)
    return collector


def test_collector_returns_sums_and_records_of_episodes() -> None:
    collector = make_collector()
    collector.keep_records()
    collector.collect(9, random_collect=True)  # episodes of 3, 2 and 3 steps, and one step of a fourth one
    assert collector.pop_infos() == {"success_rate": (1.0, 3), "wave": (6.0 + 4.0 + 6.0, 3), "laps": (0.0 + 2.0, 2)}
    assert collector.pop_infos() == {"success_rate": (0.0, 0), "wave": (0.0, 0), "laps": (0.0, 0)}
    rows = collector.pop_records()
    assert rows == [
        (3, 6.0, 3, 0.0, 6.0, 0.0),
        (5, 3.0, 2, 1.0, 4.0, pytest.approx(np.nan, nan_ok=True)),
        (8, 6.0, 3, 0.0, 6.0, 2.0),
    ]
    assert collector.pop_records() == []


def test_collector_forgets_numbers_that_a_resumed_run_does_not_log() -> None:
    first, second = make_collector(), make_collector()
    first.collect(9, random_collect=True)
    second.info_keys = {"laps": "last"}
    second.load_state_dict(first.state_dict(), continues=False)
    assert second.pop_infos() == {"success_rate": (1.0, 3), "laps": (2.0, 2)}  # the same names on every rank


def test_collector_continues_an_episode_from_its_state() -> None:
    first, second = make_collector(), make_collector()
    first.collect(2, random_collect=True)
    second.load_state_dict(first.state_dict())
    stepper: Any = first._stepper
    second._stepper = stepper  # the same env
    second.collect(1, random_collect=True)
    assert second.pop_infos()["wave"] == (6.0, 1)


def test_evaluator_returns_means_of_the_infos() -> None:
    env = make_vector_env(partial(InfoEnv, lengths=(3, 2)), 1, autoreset="disabled")
    evaluator = InteractionSerialEvaluator({"n_episode": 3}, env, policy_for(env).eval_mode)
    evaluator.info_keys = ALL
    values = evaluator.eval()[1]
    assert (values["success_rate"], values["wave"], values["laps"]) == (1 / 3, 5 / 3, 1.0)
    assert (values["number"], values["is_success"]) == (pytest.approx((0 + 2 + 6) / 3), 1 / 3)
