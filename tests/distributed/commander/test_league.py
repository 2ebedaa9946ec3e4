from __future__ import annotations

import json
from collections import Counter

import pytest

from lightning_ding.distributed.commander.one_vs_one import League
from lightning_ding.distributed.config import LeagueConfig


def league_of(*win_shares: float, **changes: float) -> League:
    """Return a league whose main player won these shares of 10 games against each of its former selves."""
    league = League(LeagueConfig(snapshot_interval=10, **changes))  # type: ignore[arg-type]
    for number, share in enumerate(win_shares):
        player = league.add("main", 10 * (number + 1))
        assert player is not None
        league.record(player, {"wins": round(10 * share), "draws": 0, "losses": 10 - round(10 * share)})
    return league


def test_weights_of_former_selves_are_the_squared_shares_of_games_that_were_not_won() -> None:
    league = league_of(0.5, 0.8, 1.0)
    # (1 - 0.5)^2 = 0.25, (1 - 0.8)^2 = 0.04, 0; divided by their sum, 0.29
    assert league.weights() == pytest.approx({"main_at_10": 25 / 29, "main_at_20": 4 / 29, "main_at_30": 0.0})
    assert league_of(1.0, 1.0).weights() == {"main_at_10": 0.5, "main_at_20": 0.5}


def test_the_hardest_player_is_the_one_that_is_beaten_least_and_one_not_met_counts_as_never_beaten() -> None:
    league = league_of(0.9, 0.3, 0.6)
    assert league.hardest() == "main_at_20"
    league.add("main", 40)
    assert league.hardest() == "main_at_40"
    assert league.win_rate("main_at_40") == 0.0
    assert league_of().hardest() is None


def test_draws_are_games_that_were_not_won_and_former_results_count_less() -> None:
    league = league_of(0.5)
    league.record("main_at_10", {"wins": 2, "draws": 6, "losses": 2})
    # 0.9 * 5 + 2 = 6.5 wins in 0.9 * 10 + 10 = 19 games
    assert league.win_rate("main_at_10") == pytest.approx(6.5 / 19)
    league.record("nobody", {"wins": 1, "draws": 0, "losses": 0})
    assert league.players == ["main_at_10"]


def test_opponents_are_drawn_in_the_configured_shares() -> None:
    league = league_of(0.5, 0.8, self_play=0.5, random_play=0.2)
    drawn = Counter(league.draw() for _ in range(5000))
    assert drawn["itself", None] / 5000 == pytest.approx(0.5, abs=0.03)
    assert drawn["random", None] / 5000 == pytest.approx(0.2, abs=0.03)
    # of the other 0.3, 25 in 29
    assert drawn["former", "main_at_10"] / 5000 == pytest.approx(0.3 * 25 / 29, abs=0.03)
    assert drawn["former", "main_at_20"] / 5000 == pytest.approx(0.3 * 4 / 29, abs=0.03)


def test_without_former_selves_it_plays_against_itself_instead() -> None:
    league = league_of(self_play=0.0, random_play=0.4)
    drawn = Counter(league.draw()[0] for _ in range(2000))
    assert drawn["former"] == 0
    assert drawn["itself"] / 2000 == pytest.approx(0.6, abs=0.05)


def test_former_selves_are_made_so_many_updates_apart() -> None:
    league = league_of()
    made = {version: league.add("main", version) for version in (0, 3, 10, 15, 19, 27, 36, 37)}
    assert [version for version, player in made.items() if player] == [10, 27, 37]


def test_the_player_that_is_beaten_most_surely_makes_room() -> None:
    league = league_of(0.5, 0.9, 0.2, max_players=3)
    league.add("main", 40)
    assert league.players == ["main_at_10", "main_at_30", "main_at_40"]


def test_a_league_resumes_from_its_state_which_is_json() -> None:
    league = league_of(0.5, 0.8)
    league.draw()
    state = json.loads(json.dumps(league.state_dict()))
    again = League(league.config)
    again.load_state_dict(state)
    assert [again.draw() for _ in range(20)] == [league.draw() for _ in range(20)]
    assert again.weights() == league.weights()
    assert again.add("main", 25) is None
    other = League(league.config, seed=1)
    other.load_state_dict(state)
    assert [other.draw() for _ in range(20)] != [again.draw() for _ in range(20)]
