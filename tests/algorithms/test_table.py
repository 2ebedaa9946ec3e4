from __future__ import annotations

from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms.table import ALGORITHMS


def test_the_tests_of_this_folder_go_over_every_algorithm() -> None:
    ours = {name for name in POLICY_REGISTRY if POLICY_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    alone = {"dt"}  # it does not collect, so tests/policy/test_dt.py has its tests
    assert ours == set(ALGORITHMS) | alone  # a policy that a test registers is no algorithm of the table
