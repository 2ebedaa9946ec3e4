"""Results of an evaluation: stopping, saving and logging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.worker import InteractionSerialEvaluator
from tests.toys.envs import CountingEnv
from tests.worker.evaluator.interaction_toys import StillPolicy, counting_envs, evaluator_of


def test_eval_reports_what_it_measured_and_when() -> None:
    _, info = evaluator_of(counting_envs([(1,), (2,)])).eval(train_iter=30, envstep=400, n_episode=2)

    assert {type(value) for values in info.values() for value in np.ravel(np.array(values, object))} <= {int, float}
    assert info == {
        "eval_episode_return": [1.0, 3.0],
        "eval_episode_length": [1, 2],
        "return_mean": 2.0,
        "return_std": 1.0,
        "return_min": 1.0,
        "return_max": 3.0,
        "train_iter": 30,
        "envstep": 400,
    }


@pytest.mark.parametrize(
    ("stop_value", "train_iter", "stop"),
    [(3.0, 1, True), (3.1, 1, False), (3.0, 0, False), (3.0, -1, False), (None, 1, False)],
)
def test_eval_stops_at_the_stop_value_but_not_before_the_first_update(
    stop_value: float | None, train_iter: int, stop: bool
) -> None:
    evaluator = evaluator_of(counting_envs([(2,)]), n_episode=1, stop_value=stop_value)  # a return of 1 + 2 = 3

    assert evaluator.eval(train_iter=train_iter)[0] is stop


def evaluate_episodes_of(lengths: Sequence[int]) -> tuple[Any, list[int]]:
    """Evaluate one episode of each length in turn; return the evaluator and how often it had saved after each."""
    saved: list[str] = []
    counts = []
    evaluator = InteractionSerialEvaluator(policy=StillPolicy().mode)
    for length in lengths:
        evaluator.reset_env(counting_envs([(length,)]))
        evaluator.eval(saved.append, n_episode=1)
        counts.append(len(saved))
    return evaluator, counts


def test_eval_saves_when_the_mean_is_the_best_so_far_and_remembers_it() -> None:
    evaluator, saved = evaluate_episodes_of([2, 1, 2, 3, 1])  # returns 3, 1, 3, 6, 1

    assert (saved, evaluator.best_return) == ([1, 1, 1, 2, 2], 6.0)


def test_reset_forgets_the_best_mean_and_the_last_evaluation() -> None:
    evaluator = evaluator_of(counting_envs([(2,)]))
    evaluator.eval(train_iter=5, n_episode=1)

    evaluator.reset()

    assert (evaluator.best_return, evaluator.should_eval(5)) == (-np.inf, True)


@pytest.mark.parametrize(
    ("evaluated_at", "asked_at", "expected"),
    [
        (None, (0, 0), [True, True]),
        (50, (50, 149, 150, 151), [False, False, True, True]),
        (0, (0, 100, 101, 100), [False, True, True, True]),
        (-1, (0,), [True]),  # an evaluation that does not say when it is
    ],
)
def test_should_eval_counts_updates_since_the_last_evaluation(
    evaluated_at: int | None, asked_at: Sequence[int], expected: list[bool]
) -> None:
    evaluator = evaluator_of(counting_envs([(1,)]), eval_freq=100)
    if evaluated_at is not None:
        evaluator.eval(n_episode=1, **({} if evaluated_at < 0 else {"train_iter": evaluated_at}))

    assert [evaluator.should_eval(train_iter) for train_iter in asked_at] == expected


@pytest.mark.parametrize("call", ["eval", "run"])
def test_policy_receives_the_policy_kwargs(call: str) -> None:
    policy = StillPolicy()
    evaluator = evaluator_of(counting_envs([(1,)]), policy)
    first: Any = {"eval": {"n_episode": 1}, "run": {"episodes": range(1)}}[call]

    told = []
    for kwargs in ({"temperature": 0.5}, None):
        getattr(evaluator, call)(**first, policy_kwargs=kwargs)
        told.append(policy.told)

    assert told == [{"temperature": 0.5}, {}]


def test_resumed_evaluator_does_not_save_a_worse_policy_nor_evaluates_too_early() -> None:
    first = evaluator_of(counting_envs([(3,)]), eval_freq=100)
    first.eval(train_iter=200, n_episode=1)  # a return of 6

    saved: list[str] = []
    resumed = evaluator_of(counting_envs([(2,)]), eval_freq=100)
    resumed.load_state_dict(first.state_dict())
    was_due = [resumed.should_eval(train_iter) for train_iter in (299, 300)]
    resumed.eval(saved.append, train_iter=300, n_episode=1)  # a return of 3

    assert (was_due, saved, resumed.best_return) == ([False, True], [], 6.0)


def test_state_of_an_evaluator_is_known_before_it_saves() -> None:
    evaluator = evaluator_of(counting_envs([(3,)]))
    states: list[dict[str, Any]] = []

    evaluator.eval(lambda _: states.append(evaluator.state_dict()), train_iter=7, n_episode=1)

    assert states == [{"last_eval_iter": 7, "best_return": 6.0, "evaluations": 1, "last_film": None}]


class Writer:
    """Notes what a SummaryWriter is given."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name] = (value, step)


def written(evaluator: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, **kwargs: Any) -> dict[str, Any]:
    """Evaluate, which takes ``seconds``, and return what was written by name."""
    clock = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr("lightning_ding.worker.evaluator.direct.perf_counter", lambda: next(clock))
    evaluator.eval(**kwargs)
    return evaluator._log.tb_logger.scalars  # type: ignore[no-any-return]


def test_eval_writes_averages_of_the_recorded_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = InteractionSerialEvaluator(
        {"n_episode": 4}, counting_envs([(1,), (3,)]), StillPolicy().mode, Writer(), instance_name="judge"
    )

    scalars = written(evaluator, monkeypatch, seconds=10.0, train_iter=30, envstep=400)

    # Two episodes of 1 step and two of 3, with returns 1 and 6; env 0 makes four more steps that count nowhere.
    expected: dict[str, float] = {
        "episode_count": 4,
        "envstep_count": 8,
        "avg_envstep_per_episode": 2,
        "evaluate_time": 10,
    }
    expected |= {"avg_time_per_episode": 2.5, "avg_envstep_per_sec": 0.8}
    expected |= {"return_mean": 3.5, "return_std": 2.5, "return_min": 1, "return_max": 6}
    assert scalars == {
        f"judge_{axis}/{name}": (value, step)
        for name, value in expected.items()
        for axis, step in (("iter", 30), ("step", 400))
    }


def test_eval_says_what_it_measured_to_the_logger_of_its_experiment(caplog: pytest.LogCaptureFixture) -> None:
    env, policy = counting_envs([(2,)]), StillPolicy().mode
    with caplog.at_level("INFO", logger="lightning_ding.trial.judge"):
        InteractionSerialEvaluator(None, env, policy, None, "trial", "judge").eval(train_iter=5, n_episode=1)

    (line,) = caplog.records
    assert line.name == "lightning_ding.trial.judge"
    assert "return_mean 3," in line.getMessage()


def test_success_of_the_episodes_is_returned_as_a_rate() -> None:
    evaluator = evaluator_of(counting_envs([(1,)]), n_episode=4)
    info = evaluator.eval()[1]
    assert info["eval_episode_return"] == [1.0] * 4  # as many as the config says
    assert "success_rate" not in info

    class Succeeds(CountingEnv):
        def step(self, action: Any) -> Any:
            *answer, info = super().step(action)
            return *answer, {**info, "is_success": self._episode == 1}

    env = gym.vector.SyncVectorEnv([lambda: Succeeds(0, (1,))], autoreset_mode=gym.vector.AutoresetMode.DISABLED)
    assert evaluator_of(env, n_episode=4).eval()[1]["success_rate"] == 1 / 4
