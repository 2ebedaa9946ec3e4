from __future__ import annotations

from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import ALGORITHMS, TEAMS, WITHOUT_COLLECTING


def test_the_tests_of_this_folder_go_over_every_algorithm() -> None:
    ours = {name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    # A policy that a test registers is no algorithm of the table. `dt` does not collect, so it cannot be in tests whose
    # runs do: exact resume, two ranks, compiled runs, spaces and options have their tests in tests/policy/test_dt*.py.
    assert ours == {*ALGORITHMS, *TEAMS, *WITHOUT_COLLECTING}
