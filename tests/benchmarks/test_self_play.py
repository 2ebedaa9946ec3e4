"""Self-play: it runs end to end in a few rounds, and learns in a minute."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def self_play(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's module."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.self_play")


def test_self_play_plays_learns_and_counts_in_a_few_rounds(
    self_play: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["self_play", "--rounds", "2", "--games", "10", "--seed", "3"])

    self_play.main()

    result = json.loads(capsys.readouterr().out)
    assert result["win"] + result["draw"] + result["loss"] == pytest.approx(1)
    assert 10 * result["win"] == pytest.approx(round(10 * result["win"]))
    assert result["envstep"] > 2 * (2 * 32 + 128)  # every transition of a player takes a separate step
    again = self_play.run(3, 2, 10)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}  # the seed decides everything


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_self_play_beats_a_random_player_in_nine_games_of_ten(self_play: Any, seed: int) -> None:
    result = self_play.run(seed)

    assert result["win"] >= 0.9
    assert result["seconds"] < 180
