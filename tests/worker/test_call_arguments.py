"""Arguments of ``collect``, ``eval`` and ``train``: their order is DI-engine's, and a wrong type raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

from lightning_ding.di_engine.naive_collector import NaiveCollector
from lightning_ding.envs import PettingZooVectorEnv
from lightning_ding.worker import (
    BaseLearner,
    BattleEpisodeSerialCollector,
    BattleInteractionSerialEvaluator,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    MetricSerialEvaluator,
    SampleSerialCollector,
)
from lightning_ding.worker.arguments import collect_mode_of, command_mode_of, eval_mode_of, learn_mode_of
from lightning_ding.worker.log import WorkerLog
from tests.toys.envs import CountingEnv
from tests.toys.games import RelayGame
from tests.worker.collector.sampling_toys import PlacePolicy

BATTLE = (BattleSampleSerialCollector, BattleEpisodeSerialCollector)
KINDS = [SampleSerialCollector, EpisodeSerialCollector, *BATTLE]


class Recorder(PlacePolicy):
    """Takes action 0, and records the arguments of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes = {}

    def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action": 0 * super().forward(obs, **kwargs)["action"]}


def collector_of(kind: Any) -> tuple[Any, Recorder]:
    policy = Recorder()
    if kind in BATTLE:
        env = PettingZooVectorEnv(functools.partial(RelayGame, 0, 2, (4,), (False,)), 1)
        return kind(env=env, policy=[policy.mode, policy.mode]), policy
    return kind(env=SyncVectorEnv([functools.partial(CountingEnv, 0, (3,))]), policy=policy.mode), policy


@pytest.mark.parametrize("kind", KINDS)
def test_policy_kwargs_stands_where_di_engine_has_it(kind: Any) -> None:
    before: dict[Any, tuple[Any, ...]] = {
        SampleSerialCollector: (True, False, True),  # drop_extra, random_collect, record_random_collect
        BattleSampleSerialCollector: (True,),  # drop_extra
    }
    collector, policy = collector_of(kind)

    collector.collect(2, 0, *before.get(kind, ()), {"eps": 0.1})

    assert policy.kwargs
    assert all(kwargs == {"eps": 0.1} for kwargs in policy.kwargs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_iter", 1.5),
        ("train_iter", True),
        ("train_iter", {"eps": 0.1}),
        ("random_collect", {"eps": 0.1}),
        ("random_collect", 1),
        ("policy_kwargs", True),
        ("policy_kwargs", 0.1),
        ("policy_kwargs", "eps"),
        ("policy_kwargs", {1: 0.1}),
        ("policy_kwargs", [0.1, 0.2]),
    ],
)
def test_collect_refuses_an_argument_of_the_wrong_type_before_it_steps(kind: Any, name: str, value: Any) -> None:
    collector, policy = collector_of(kind)

    with pytest.raises(TypeError, match=f"{name} must be "):
        collector.collect(2, **{name: value})

    assert collector.envstep == 0
    assert not policy.kwargs


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SampleSerialCollector, "drop_extra"),
        (BattleSampleSerialCollector, "drop_extra"),
        (SampleSerialCollector, "record_random_collect"),
        (EpisodeSerialCollector, "record_random_collect"),
    ],
)
def test_collect_refuses_a_switch_that_is_no_bool(kind: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a bool, got {{'eps': 0.1}}"):
        collector_of(kind)[0].collect(2, **{name: {"eps": 0.1}})


@pytest.mark.parametrize("kind", BATTLE)
def test_each_player_may_have_separate_arguments(kind: Any) -> None:
    collector, policy = collector_of(kind)

    collector.collect(2, policy_kwargs=[{"eps": 0.1}, {"eps": 0.2}])

    assert {kwargs["eps"] for kwargs in policy.kwargs} == {0.1, 0.2}


EVALUATORS = [InteractionSerialEvaluator, BattleInteractionSerialEvaluator, MetricSerialEvaluator]
OF_ALL = [("save_ckpt_fn", 4), ("train_iter", 1.5), ("envstep", "10"), ("n_episode", 2.0), ("n_episode", True)]
OF_ONE = [("force_render", 1), ("policy_kwargs", True)]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, *case) for kind in EVALUATORS for case in OF_ALL]
    + [(InteractionSerialEvaluator, *case) for case in OF_ONE],
)
def test_eval_refuses_an_argument_of_the_wrong_type(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be "):
        kind().eval(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("envstep", {"eps": 0.1}), ("envstep", 1.5), ("policy_kwargs", 3)])
def test_train_refuses_an_argument_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be "):
        BaseLearner().train({}, **{name: value})


@pytest.mark.parametrize(("name", "value"), [("host", 8000), ("port", "8000"), ("port", 80.0)])
def test_a_naive_collector_refuses_an_address_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be "):
        NaiveCollector(**{name: value})


class Broken:
    """A policy and a logger whose properties have an error."""

    def _fail(self) -> Any:
        return self.absent  # type: ignore[attr-defined]

    learn_mode = collect_mode = eval_mode = command_mode = experiment = property(_fail)


@pytest.mark.parametrize("mode_of", [learn_mode_of, collect_mode_of, eval_mode_of, command_mode_of])
def test_error_inside_the_mode_of_a_policy_is_raised(mode_of: Callable[[Any], Any]) -> None:
    with pytest.raises(AttributeError, match="absent"):
        mode_of(Broken())
    policy = SimpleNamespace(learn_mode=1, collect_mode=1, eval_mode=1, command_mode=1)
    assert mode_of(policy) == 1
    assert mode_of("a mode") == "a mode"


def test_error_inside_the_experiment_of_a_logger_is_raised() -> None:
    with pytest.raises(AttributeError, match="absent"):
        _ = WorkerLog(Broken()).writer
    assert WorkerLog(SimpleNamespace(experiment=1)).writer == 1
    assert WorkerLog(None).writer is None
