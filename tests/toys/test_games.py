"""The relay game says what its docstring says, in the form of PettingZoo."""

from __future__ import annotations

import pytest

from tests.toys.games import RelayGame


def played(game: RelayGame) -> list[tuple[str, list[float], float, bool, bool]]:
    """Play an episode as PettingZoo's users do, and return what each turn gave."""
    game.reset()
    turns = []
    while game.agents:
        obs, reward, terminated, truncated, _ = game.last()
        turns.append((game.agent_selection, obs.tolist(), reward, terminated, truncated))
        game.step(None if terminated or truncated else 1)
    return turns


def test_episode_of_three_moves_by_two_players() -> None:
    assert played(RelayGame(number=7, lengths=(3,))) == [
        ("player_0", [7, 0, 0, 0], 0, False, False),
        ("player_1", [7, 0, 1, 1], -1, False, False),
        ("player_0", [7, 0, 2, 0], 1 - 2, False, False),
        ("player_1", [7, 0, 3, 1], 2 - 3, True, False),
        ("player_0", [7, 0, 3, 0], 3, True, False),
    ]


def test_lengths_and_kinds_of_ends_take_turns() -> None:
    game = RelayGame(num_players=3, lengths=(1, 2), truncates=(False, True))
    episodes = [played(game) for _ in range(3)]

    assert [len(turns) - 3 for turns in episodes] == [1, 2, 1]
    assert [turns[-1][3:] for turns in episodes] == [(True, False), (False, True), (True, False)]
    assert [turns[0][1][1] for turns in episodes] == [0, 1, 2]


def test_only_an_empty_action_is_accepted_after_the_end() -> None:
    game = RelayGame(lengths=(1,))
    game.reset()
    game.step(0)

    with pytest.raises(ValueError, match="action must be None when the episode has ended"):
        game.step(0)


@pytest.mark.parametrize(("name", "value"), [("num_players", 1), ("lengths", ()), ("lengths", (0,)), ("truncates", ())])
def test_argument_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        RelayGame(**{name: value})  # type: ignore[arg-type]
