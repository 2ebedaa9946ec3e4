"""Tests of attributes for workers that classes outside of the package give."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.attributes import policy_of

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
