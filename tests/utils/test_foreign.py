"""The names of DI-engine that the core knows without loading what answers them."""

from __future__ import annotations

from lightning_ding.di_engine.policies import names
from lightning_ding.utils.foreign import POLICY_NAMES


def test_names_of_policies_are_those_that_di_engine_answers() -> None:
    assert names.ALIASES.keys() | names.METHODS.keys() == POLICY_NAMES
