"""Runs in a real cluster of a head and several nodes, which die, each in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SCRIPT = Path(__file__).with_name("cluster_scenarios.py")


def play(scenario: str, folder: Path) -> None:
    """Run a scenario; its assertions fail the test."""
    pytest.importorskip("ray")
    command = [sys.executable, str(SCRIPT), scenario, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        try:
            assert process.wait(timeout=800.0) == 0
        finally:
            process.kill()


def test_collectors_are_spread_and_a_killed_node_costs_no_acknowledged_transition(tmp_path: Path) -> None:
    play("killed_nodes", tmp_path)


def test_auto_number_of_collectors_follows_the_cluster_up_and_down(tmp_path: Path) -> None:
    play("auto", tmp_path)


def test_learner_has_ranks_on_two_nodes_which_are_restarted_together(tmp_path: Path) -> None:
    play("ranks", tmp_path)


def test_weights_are_fetched_once_for_each_node(tmp_path: Path) -> None:
    play("weights", tmp_path)


def test_run_whose_head_has_died_is_resumed_in_another_cluster(tmp_path: Path) -> None:
    play("head_restarted", tmp_path)
