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
