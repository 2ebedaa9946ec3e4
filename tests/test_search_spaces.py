from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.config import deep_merge, resolve, to_dict
from lightning_ding.policy.dqn import DQNConfig
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.search_spaces import (
    Choice,
    IntLogUniform,
    IntUniform,
    LogUniform,
    SearchSpace,
    Uniform,
    declared_spaces,
    parse_space,
    searched,
)
from lightning_ding.tune.config import nested, values_of

OURS = [name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")]


class RandomTrial:
    """A trial that draws without Optuna, and keeps what it was asked."""

    def __init__(self, seed: int = 0) -> None:
        self.rng, self.asked = random.Random(seed), list[Any]()

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        self.asked.append((name, low, high, log))
        return self.rng.uniform(low, high)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        self.asked.append((name, low, high, log))
        return self.rng.randint(low, high)

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.asked.append((name, choices))
        return self.rng.choice(choices)


SPACES = [
    ("log(1e-5,1e-2)", LogUniform(1e-5, 1e-2)),
    (" uniform( 0.9 , 1 ) ", Uniform(0.9, 1.0)),
    ("int(1,5)", IntUniform(1, 5)),
    ("log_int(16,512)", IntLogUniform(16, 512)),
    ("choice(32, 6.5, relu, true, null)", Choice(32, 6.5, "relu", True, None)),
]


@pytest.mark.parametrize(("text", "space"), SPACES)
def test_text_of_a_space_is_read_and_written(text: str, space: SearchSpace) -> None:
    assert parse_space(text) == space
    assert parse_space(str(space)) == space


@pytest.mark.parametrize(
    "values",
    [
        ("1", "2"),
        ("1", 1, 1.0, True, "true"),
        ("a,b", "c"),
        ("none", "null", None),
        ("", " a ", "it's", '"a"', "'", "\\"),
        ("a\nb", "x)", "(y"),
        ("inf", float("inf"), 1e20, -3),
    ],
)
def test_values_of_a_choice_are_read_as_they_were_written(values: tuple[Any, ...]) -> None:
    found = parse_space(str(Choice(*values)))
    assert isinstance(found, Choice)
    assert [(type(value), value) for value in found.values] == [(type(value), value) for value in values]


def test_quotes_around_a_value_make_it_a_string() -> None:
    assert parse_space("""choice('1', "none", 'a, b', relu, don't)""") == Choice("1", "none", "a, b", "relu", "don't")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e-5..1e-2", "a search space must be one of"),
        ("lgo(1,2)", "did you mean 'log'"),
        ("log(1)", "two numbers, its ends"),
        ("log(a,b)", "two numbers, its ends"),
        ("log(0,1)", "> 0 with log, got 0.0"),
        ("uniform(2,1)", "the lower one first"),
        ("uniform(0,inf)", "finite"),
        ("int(1,2.5)", "an integer with int, got 2.5"),
        ("log_int(0,5)", ">= 1 with log_int, got 0"),
        ("choice(1)", "at least 2 values"),
        ("choice(1,1)", "different values"),
    ],
)
def test_text_that_is_no_space_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse_space(text)


def test_space_asks_a_trial_for_its_kind_of_value() -> None:
    trial = RandomTrial()
    for _, space in SPACES:
        assert space.suggest(trial, "x") in space
    asked = [("x", 1e-5, 1e-2, True), ("x", 0.9, 1.0, False), ("x", 1, 5, False), ("x", 16, 512, True)]
    assert trial.asked[:4] == asked


def test_space_contains_its_values_only() -> None:
    assert 5 in IntUniform(1, 5)
    assert 6 not in IntUniform(1, 5)
    assert 2.0 not in IntUniform(1, 5)
    assert True not in Uniform(0, 2)
    assert 1 not in Choice(True, 2)


@dataclass(frozen=True)
class Section:
    rate: float = searched(0.1, Uniform(0, 1))
    size: int = searched(2, IntUniform(1, 3))
    free: int = 1


@dataclass(frozen=True)
class OtherDefault(Section):
    rate: float = 0.2


@dataclass(frozen=True)
class WithoutRate(OtherDefault):
    rate: float = searched(0.3, None)

    def unsearched(self) -> set[str]:
        return {"size"} if self.free == 2 else set()


@dataclass(frozen=True)
class Whole:
    section: Section = field(default_factory=Section)


def test_space_is_inherited_until_a_class_removes_it() -> None:
    both = {"section.rate": Uniform(0, 1), "section.size": IntUniform(1, 3)}
    assert declared_spaces(Whole()) == both
    assert OtherDefault().rate == 0.2
    assert declared_spaces(Whole(OtherDefault())) == both
    assert declared_spaces(Whole(WithoutRate())) == {"section.size": IntUniform(1, 3)}


def test_section_excludes_fields_that_its_values_leave_no_choice_of() -> None:
    assert declared_spaces(Whole(WithoutRate(free=2))) == {}


def test_target_update_is_searched_in_the_form_that_the_config_has() -> None:
    copies = declared_spaces(resolve(DQNConfig, {"learn": {"target_update_freq": 100}}))
    soft = declared_spaces(resolve(DQNConfig, {"learn": {"target_theta": 0.01}}))
    assert copies.keys() - soft.keys() == {"learn.target_update_freq"}
    assert soft.keys() - copies.keys() == {"learn.target_theta"}


def test_reward_model_leaves_no_choice_of_nstep() -> None:
    assert "nstep" in declared_spaces(DQNConfig())
    assert "nstep" not in declared_spaces(resolve(DQNConfig, {"nstep": 1, "reward_model": {"type": "rnd"}}))


def test_every_algorithm_declares_its_learning_rate_batch_size_and_discount() -> None:
    assert len(OURS) >= 32
    without_batch, without_discount = {"a2c", "pg"}, {"bc", "dt"}
    for name in OURS:
        found = declared_spaces(POLICY_REGISTRY.get(name).config_class())
        assert any(one.startswith("learn.learning_rate") for one in found), name
        assert ("learn.batch_size" in found) == (name not in without_batch), name
        assert ("discount_factor" in found) == (name not in without_discount), name


@pytest.mark.parametrize("name", OURS)
def test_default_and_all_values_of_declared_spaces_are_allowed(name: str) -> None:
    config = POLICY_REGISTRY.get(name).config_class()
    spaces = declared_spaces(config)
    for path, value in values_of(config, spaces).items():
        assert value is None or value in spaces[path], path
    for path, space in spaces.items():
        for value in space.bounds():
            resolve(type(config), deep_merge(to_dict(config), nested({path: value})))
    for seed in range(5):
        drawn = {path: space.suggest(RandomTrial(seed), path) for path, space in spaces.items()}
        resolve(type(config), deep_merge(to_dict(config), nested(drawn)))
