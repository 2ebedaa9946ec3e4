from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_ding.policy import BCPolicy, DQNPolicy
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.utils.attributes import NAMES, PolicyAttributes, policy_of

SHAPES = {"obs_shape": 2, "action_shape": 2}


class HalfBatches:
    """A mixin with the size of a minibatch, under the name that modes ask for."""

    def _get_batch_size(self) -> int:
        return 3


class Mine(DQNPolicy):
    """Says the size of its rounds itself."""

    def _get_n_sample(self) -> int:
        return 7


class Both(HalfBatches, Mine):
    """Has the methods of two bases."""


def test_method_of_a_subclass_is_the_attribute_that_workers_read() -> None:
    policy = Mine({"model": SHAPES})
    assert policy.n_sample == policy.collect_mode.get_attribute("n_sample") == 7
    assert policy.batch_size == DQNPolicy({"model": SHAPES}).batch_size


def test_method_of_a_mixin_is_the_attribute_that_workers_read() -> None:
    policy = Both({"model": SHAPES})
    assert (policy.batch_size, policy.n_sample) == (3, 7)


@pytest.mark.parametrize("name", sorted(NAMES - {"dataset_columns"}))
def test_an_attribute_has_one_value_by_name_and_as_an_attribute(name: str) -> None:
    policy = DQNPolicy({"model": SHAPES, "nstep": 2})
    assert policy.learn_mode.get_attribute(name) == getattr(policy, name)


@pytest.mark.parametrize("name", ["discount_factor", "update_per_collect"])
def test_an_attribute_that_the_loss_reads_of_the_config_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}' is computed by DQNPolicy; change its config instead"):
        DQNPolicy({"model": SHAPES}).set_attribute(name, 1)


def test_an_attribute_that_an_algorithm_fixes_cannot_be_set() -> None:
    policy = BCPolicy({"model": {**SHAPES, "action_space": "discrete"}})
    assert policy.discount_factor == 1.0
    with pytest.raises(AttributeError, match="'discount_factor' is computed by BCPolicy"):
        policy.set_attribute("discount_factor", 0.5)


def test_mode_of_a_policy_leads_to_the_policy_itself() -> None:
    policy = DQNPolicy({"model": SHAPES})
    for mode in (policy, policy.learn_mode, policy.collect_mode, policy.eval_mode):
        assert policy_of(mode) is policy
    assert policy_of(random_collect_mode(SimpleNamespace())).collect_data is False  # type: ignore[arg-type]


def mode_that(get_attribute: Any) -> PolicyAttributes:
    return policy_of(DQNPolicy({"model": SHAPES}).collect_mode._replace(get_attribute=get_attribute))


def test_mode_with_another_function_is_read_by_name() -> None:
    found = mode_that({"n_sample": 5, "batch_size": 4}.__getitem__)
    assert (found.n_sample, found.batch_size) == (5, 4)
    assert (found.n_episode, found.unroll_len, found.collect_data, found.acts_on_reward) == (None, 1, True, False)


def test_error_of_a_function_that_knows_the_name_is_raised() -> None:
    def fails(name: str) -> Any:
        raise KeyError("a key of something else")

    with pytest.raises(KeyError, match="something else"):
        mode_that(fails).n_sample  # noqa: B018
    with pytest.raises(KeyError, match="batch_size"):
        mode_that({}.__getitem__).batch_size  # noqa: B018


CFG = {"model": {"obs_shape": 4, "action_shape": 2}}


class Small:
    """A base that is no policy."""

    def _get_batch_size(self) -> int:
        return 7


def test_a_method_of_a_class_precedes_that_of_a_mixin_in_subclasses_too() -> None:
    class Own(Small, DQNPolicy):
        def _get_batch_size(self) -> int:
            return 8

    class Below(Own):
        pass

    assert [one(CFG).batch_size for one in (Own, Below)] == [8, 8]
    assert Below(CFG).learn_mode.get_attribute("batch_size") == 8


def test_a_property_precedes_the_method_of_a_mixin_further_up() -> None:
    class Own(Small, DQNPolicy):
        pass

    class Below(Own):
        @property
        def batch_size(self) -> int:
            return 9

    assert [one(CFG).batch_size for one in (Own, Below)] == [7, 9]


class Asked(DQNPolicy):
    """A policy with an own ``get_attribute``."""

    def get_attribute(self, name: str) -> Any:
        """Return a larger ``n_sample``, and everything else as it is."""
        return 16 if name == "n_sample" else super().get_attribute(name)


class AskedToo(Asked):
    """A policy below it, with methods of its own."""

    def _get_n_sample(self) -> int:
        return 17

    def _get_batch_size(self) -> int:
        return 5


@pytest.mark.parametrize("kind", [Asked, AskedToo])
def test_workers_and_datamodules_ask_an_overridden_get_attribute(kind: type[DQNPolicy]) -> None:
    policy = kind(CFG)
    assert policy_of(policy.collect_mode).n_sample == policy.n_sample == 16
    assert policy.batch_size == policy.get_attribute("batch_size") == (5 if kind is AskedToo else 128)
    assert policy.get_attribute("on_policy") is False
    policy.set_attribute("collect_data", False)
    assert policy.collect_data is False
    with pytest.raises(AttributeError, match="'batch_size' is computed"):
        policy.set_attribute("batch_size", 3)


def test_an_error_inside_of_an_attribute_is_shown_as_it_is() -> None:
    class Wrong(DQNPolicy):
        def _get_batch_size(self) -> int:
            return self.config.learn.batchsize  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="batchsize"):
        Wrong(CFG).batch_size  # noqa: B018
