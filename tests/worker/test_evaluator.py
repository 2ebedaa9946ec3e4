"""The evaluator: an unbiased mean over a fixed quota of episodes, and what follows from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs.toy import CountingEnv
from lightning_ding.policy.modes import EvalMode
from lightning_ding.worker import InteractionSerialEvaluator, VectorEvalMonitor, create_serial_evaluator
from lightning_ding.worker_config import EvaluatorConfig

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


class StillPolicy:
    """Always takes action 0; remembers its resets."""

    def __init__(self) -> None:
        self.resets: list[Sequence[int] | None] = []

    def forward(self, obs: Any) -> dict[str, Any]:
        return {"action": torch.zeros(len(obs), dtype=torch.int64)}

    def reset(self, data_id: Sequence[int] | None = None) -> None:
        self.resets.append(data_id)

    @property
    def mode(self) -> EvalMode:
        def nothing(*_: Any) -> Any:
            raise AssertionError("an evaluator must not touch this")

        return EvalMode(self.forward, self.reset, nothing, nothing, nothing, nothing)


class SeedEnv(gym.Env[Any, Any]):
    """Its reward is a number drawn from the seed of the reset; so is the length of its episodes, 1 to 5."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.reward = int(self.np_random.integers(1, 6)), float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), self.reward, self.left == 0, False, {}


def counting_envs(lengths: Sequence[Sequence[int]], mode: AutoresetMode = AutoresetMode.SAME_STEP) -> VectorEnv:
    """Return envs with episodes of these lengths; the return of n steps is n (n + 1) / 2."""
    makers = [functools.partial(CountingEnv, i, of_env) for i, of_env in enumerate(lengths)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def seed_envs(num_envs: int, mode: AutoresetMode = AutoresetMode.DISABLED) -> VectorEnv:
    return SyncVectorEnv([SeedEnv] * num_envs, autoreset_mode=mode)


def evaluator_of(env: VectorEnv, policy: StillPolicy | None = None, seed: int = 0, **cfg: Any) -> Any:
    return InteractionSerialEvaluator(cfg, env=env, policy=(policy or StillPolicy()).mode, seed=seed)


# ------------------------------------------------------------------ the quota


@pytest.mark.parametrize(("n_episode", "quota"), [(1, [1, 0, 0]), (3, [1, 1, 1]), (8, [3, 3, 2])])
def test_eval_monitor_shares_the_episodes_out_evenly(n_episode: int, quota: list[int]) -> None:
    assert VectorEvalMonitor(3, n_episode).quota.tolist() == quota


def test_eval_monitor_ignores_episodes_beyond_the_quota() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=2)
    for value in (1.0, 99.0):
        monitor.update_info(0, {"length": value})
        monitor.update_reward(0, value)

    assert monitor.get_episode_return() == [1.0]
    assert (monitor.get_episode_info() or {})["length"] == [1.0]


def test_eval_monitor_is_finished_when_every_env_has_delivered() -> None:
    monitor, was_finished = VectorEvalMonitor(env_num=2, n_episode=3), []
    for env_id in (0, 0, 0, 1):
        monitor.update_reward(env_id, 0.0)
        was_finished.append(monitor.is_finished())

    assert was_finished == [False, False, False, True]  # two episodes of env 0 count, one of env 1


def test_eval_monitor_wants_no_episode_of_an_env_without_quota() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=1)

    assert [monitor.wants(0), monitor.wants(1)] == [True, False]


def test_eval_monitor_counts_and_shows_the_newest() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=4)
    monitor.update_reward(1, np.float64(5.0))
    monitor.update_reward(1, torch.tensor(7.0))

    assert (monitor.get_latest_reward(1), monitor.get_current_episode()) == (7.0, 2)


def test_eval_monitor_has_no_newest_return_before_the_first() -> None:
    with pytest.raises(IndexError):
        VectorEvalMonitor(env_num=1, n_episode=1).get_latest_reward(0)


def test_eval_monitor_averages_numbers_and_lists_the_rest() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=2)
    monitor.update_info(1, {"won": True, "map": "north"})
    monitor.update_info(0, {"won": False, "map": "south", "score": 3})

    info = monitor.get_episode_info()

    expected = {"won": [False, True], "map": ["south", "north"], "score": [3], "won_mean": 0.5, "score_mean": 3.0}
    assert info == expected


def test_eval_monitor_knows_nothing_before_the_first_episode() -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)

    assert (monitor.get_episode_info(), monitor.get_episode_return()) == (None, [])


@pytest.mark.parametrize(("env_num", "n_episode", "name"), [(0, 1, "env_num"), (1, 0, "n_episode")])
def test_eval_monitor_refuses_numbers_that_are_none(env_num: int, n_episode: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        VectorEvalMonitor(env_num, n_episode)


# ------------------------------------------------------------------ the mean


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_does_not_prefer_short_episodes(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(1,), (3,), (8,)], mode))

    _, info = evaluator.eval(n_episode=6)

    # Two episodes of each env, with returns 1, 6 and 36, have the mean 43 / 3. The first six episodes to end would be
    # five of env 0 and one of env 1, with the mean 11 / 6.
    assert info["return_mean"] == pytest.approx(43 / 3, rel=1e-12)
    assert sorted(info["eval_episode_return"]) == [1, 1, 6, 6, 36, 36]


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_measures_whole_episodes_one_by_one(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(1, 4), (2, 3)], mode))

    returns, lengths = evaluator.run(range(5))

    # Episodes 0, 2, 4 are of env 0 and 1, 3 of env 1; their lengths are 1, 4, 1 and 2, 3.
    assert lengths == [1, 2, 4, 3, 1]
    assert returns == [1, 3, 10, 6, 1]


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_starts_every_evaluation_with_new_episodes(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(2,), (5,)], mode))

    lengths = [evaluator.run(range(2))[1] for _ in range(3)]

    assert lengths == [[2, 5]] * 3  # env 0 was in the middle of its third episode when env 1 had finished


def test_evaluator_leaves_envs_without_quota_out() -> None:
    returns, lengths = evaluator_of(counting_envs([(4,), (1,), (1,)])).run(range(1))

    assert (returns, lengths) == ([10.0], [4])


def test_evaluator_runs_the_same_episodes_on_any_number_of_envs() -> None:
    results = [evaluator_of(seed_envs(num_envs)).run(range(7)) for num_envs in (1, 2, 3, 7, 9)]

    assert len(set(results[0][0])) == 7
    assert all(result == results[0] for result in results)


def test_evaluator_runs_its_share_of_the_episodes_as_one_that_runs_all() -> None:
    everything = evaluator_of(seed_envs(2)).run(range(6))
    shares = [evaluator_of(seed_envs(2)).run(range(6)[rank::2]) for rank in range(2)]

    assert everything[0][0::2] == shares[0][0]
    assert everything[0][1::2] == shares[1][0]


def test_evaluator_runs_the_same_episodes_at_every_evaluation() -> None:
    evaluator = evaluator_of(seed_envs(3))

    assert evaluator.run(range(7)) == evaluator.run(range(7))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_evaluator_seeds_the_first_episode_of_each_env_if_the_env_resets_itself(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(seed_envs(3, mode))

    assert evaluator.run(range(3)) == evaluator_of(seed_envs(3)).run(range(3))


def test_evaluator_runs_other_episodes_with_another_seed() -> None:
    first, second = (evaluator_of(seed_envs(2), seed=seed).run(range(4))[0] for seed in (0, 1))

    assert not set(first) & set(second)


def test_evaluator_resets_the_policy_at_the_start_and_where_an_episode_ended() -> None:
    policy = StillPolicy()
    evaluator = evaluator_of(counting_envs([(1,), (2,)]), policy)
    policy.resets.clear()

    evaluator.run(range(4))

    assert policy.resets == [None, [0], [0, 1], [0], [0, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_gives_a_policy_with_memory_the_same_episodes_in_every_mode(mode: AutoresetMode) -> None:
    class Metronome(StillPolicy):
        """Notes the steps of each observation beside how often it has acted in the env since it was reset."""

        def __init__(self) -> None:
            super().__init__()
            self.ticks = np.zeros(2, dtype=np.int64)
            self.late = 0

        def forward(self, obs: Any) -> dict[str, Any]:
            self.late += int((self.ticks > obs[:, 2]).sum())
            self.ticks += 1
            return super().forward(obs)

        def reset(self, data_id: Sequence[int] | None = None) -> None:
            self.ticks[slice(None) if data_id is None else list(data_id)] = 0

    policy = Metronome()

    evaluator_of(counting_envs([(1,), (3,)], mode), policy).run(range(8))

    assert policy.late == 0


# ------------------------------------------------------------------ what an evaluation leads to


def test_eval_reports_what_it_measured_and_when() -> None:
    _, info = evaluator_of(counting_envs([(1,), (2,)])).eval(train_iter=30, envstep=400, n_episode=2)

    assert info == {
        "eval_episode_return": [1.0, 3.0],
        "eval_episode_length": [1, 2],
        "return_mean": 2.0,
        "train_iter": 30,
        "envstep": 400,
    }


def test_eval_runs_as_many_episodes_as_the_config_says() -> None:
    _, info = evaluator_of(counting_envs([(1,)]), n_episode=4).eval()

    assert info["eval_episode_return"] == [1.0] * 4


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


def test_eval_saves_when_the_mean_is_the_best_so_far() -> None:
    _, saved = evaluate_episodes_of([2, 1, 2, 3])  # returns 3, 1, 3, 6

    assert saved == [1, 1, 1, 2]


def test_eval_remembers_the_best_mean() -> None:
    evaluator, _ = evaluate_episodes_of([2, 3, 1])  # returns 3, 6, 1

    assert evaluator.best_return == 6.0


def test_reset_forgets_the_best_mean_and_the_last_evaluation() -> None:
    evaluator = evaluator_of(counting_envs([(2,)]))
    evaluator.eval(train_iter=5, n_episode=1)

    evaluator.reset()

    assert (evaluator.best_return, evaluator.should_eval(5)) == (-np.inf, True)


def test_should_eval_is_true_before_the_first_evaluation() -> None:
    assert evaluator_of(counting_envs([(1,)])).should_eval(0)


def test_should_eval_counts_updates_since_the_last_evaluation() -> None:
    evaluator = evaluator_of(counting_envs([(1,)]), eval_freq=100)
    evaluator.eval(train_iter=50, n_episode=1)

    assert [evaluator.should_eval(train_iter) for train_iter in (50, 149, 150, 151)] == [False, False, True, True]


def test_should_eval_changes_nothing_by_being_asked() -> None:
    evaluator = evaluator_of(counting_envs([(1,)]), eval_freq=100)
    evaluator.eval(train_iter=0, n_episode=1)

    assert [evaluator.should_eval(train_iter) for train_iter in (100, 101, 100)] == [True, True, True]


# ------------------------------------------------------------------ errors and life


@pytest.mark.parametrize("evaluate", [lambda e: e.eval(n_episode=0), lambda e: e.run(range(0))])
def test_evaluator_needs_an_episode(evaluate: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="n_episode must be >= 1, got 0"):
        evaluate(evaluator_of(counting_envs([(1,)])))


@pytest.mark.parametrize("given", ["nothing", "env", "policy"])
def test_evaluator_needs_env_and_policy(given: str) -> None:
    parts: dict[str, Any] = {"env": counting_envs([(1,)]), "policy": StillPolicy().mode}
    evaluator = InteractionSerialEvaluator(**{name: part for name, part in parts.items() if name == given})

    with pytest.raises(RuntimeError, match="the evaluator needs an env and a policy: pass them"):
        evaluator.eval()


def test_evaluator_takes_env_and_policy_later() -> None:
    evaluator = InteractionSerialEvaluator()
    evaluator.reset(policy=StillPolicy().mode, env=counting_envs([(2,)]))

    assert evaluator.run(range(1)) == ([3.0], [2])


def test_evaluator_leaves_the_env_open_when_its_context_ends() -> None:
    env = counting_envs([(2,)])
    with evaluator_of(env):
        pass

    assert not env.closed


def test_evaluator_forgets_its_env_when_its_context_ends() -> None:
    with evaluator_of(counting_envs([(2,)])) as evaluator:
        pass

    with pytest.raises(RuntimeError, match="needs an env"):
        evaluator.eval()


@pytest.mark.parametrize("name", ["eval_freq", "n_episode"])
def test_evaluator_refuses_numbers_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        InteractionSerialEvaluator({name: 0})


def test_evaluator_default_config_holds_the_fields_of_the_dataclass() -> None:
    default = InteractionSerialEvaluator.default_config()

    assert default.cfg_type == "InteractionSerialEvaluatorDict"
    assert default.eval_freq == EvaluatorConfig().eval_freq


def test_create_serial_evaluator_makes_an_interaction_evaluator_if_nothing_is_said() -> None:
    evaluator = create_serial_evaluator({"eval_freq": 7}, env=counting_envs([(2,)]), policy=StillPolicy().mode)

    assert isinstance(evaluator, InteractionSerialEvaluator)
    assert evaluator.config.eval_freq == 7
    assert evaluator.run(range(1)) == ([3.0], [2])


def test_create_serial_evaluator_lists_the_types_there_are() -> None:
    with pytest.raises(KeyError, match=r"no serial evaluator is registered as 'inter'.*Registered: .*interaction"):
        create_serial_evaluator({"type": "inter"})
