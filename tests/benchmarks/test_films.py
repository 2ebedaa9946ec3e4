"""The films of the home page: the command of each, and the table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import films


def test_command_of_a_film_has_the_options_with_which_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def enjoy(ckpt: str, **options: Any) -> list[tuple[float, Path]]:
        seen.update(options, ckpt=ckpt)
        return [(12.34567, tmp_path)]

    monkeypatch.setattr(films, "enjoy", enjoy)
    made = films.film("dqn_cartpole", tmp_path)
    assert made["return"] == 12.346
    program, name, ckpt, *words = shlex.split(made["command"])
    assert (program, name, ckpt) == ("lightning-ding", "enjoy", seen.pop("ckpt"))
    assert dict(zip(words[::2], words[1::2], strict=True)) == {f"--{key}": str(one) for key, one in seen.items()}
    assert seen == {"video": f"{tmp_path}/dqn_cartpole.webp", "seed": 0, "width": 200, "fps": 20, "seconds": 5}
    films.film("sac_pendulum", tmp_path)
    assert films.SCENES["sac_pendulum"].seconds is None
    assert "--seconds" not in films.film("sac_pendulum", tmp_path)["command"]


def test_table_has_a_picture_and_its_caption_below_it() -> None:
    made = {name: {"return": 1000.0 * number} for number, name in enumerate(films.SCENES, 1)}
    lines = films.table(made, [*films.SCENES], "x", [("picture", "caption")]).splitlines()
    assert len(lines) == 5
    assert lines[1] == "|:-:|:-:|:-:|"
    assert lines[0].startswith("| ![The pendulum swings up and stays upright; return 1000.0](x/sac_pendulum.webp) | ![")
    assert lines[2].startswith(
        "| SAC on Pendulum-v1, return 1000.0, whole episode | DQN on CartPole-v1, return 2000.0,"
    )
    assert lines[3].endswith("| picture |")
    assert lines[4].endswith("PPO on Walker2d-v5, return 5000.0, first 3 s | caption |")
