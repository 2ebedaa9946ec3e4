"""Films of trained policies: docs/results/films, and the tables of films in docs/index.md and README.md.

    pip install '.[mujoco,video]'    # MuJoCo draws with EGL or OSMesa: apt-get install libosmesa6
    python -m benchmarks.films       # all films, a few minutes; then the tables
    python -m benchmarks.films --only sac_pendulum

Each film is made by ``lightning-ding enjoy``, with the command in films.json, from a policy that comes with the
package, and shows one greedy episode or its start. Its caption has the return of that whole episode. The film of a team
is the one of docs/guides/teams.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.versus import with_table
from lightning_ding.entry.enjoy import enjoy
from lightning_ding.utils.protocols import return_text

FOLDER = Path("docs/results/films")
INDEX = "films.json"
MARKS = ("<!-- films -->\n", "<!-- /films -->")
WIDTH, FPS, SEED = 200, 20, 0
COLUMNS = 3


@dataclass(frozen=True)
class Scene:
    """A film and what it shows."""

    title: str
    """Algorithm and env."""
    shows: str
    """What the agent does, as a sentence without its end."""
    seconds: float | None = None
    """Length of the film; None means the whole episode."""


SCENES = {
    "sac_pendulum": Scene("SAC on Pendulum-v1", "The pendulum swings up and stays upright"),
    "dqn_cartpole": Scene("DQN on CartPole-v1", "The cart balances the pole", seconds=5),
    "ppo_halfcheetah": Scene("PPO on HalfCheetah-v5", "The cheetah runs", seconds=3),
    "ppo_hopper": Scene("PPO on Hopper-v5", "The hopper hops on its leg", seconds=3),
    "ppo_walker2d": Scene("PPO on Walker2d-v5", "The walker hops forward with both legs at once", seconds=3),
}
"""Films by the names of policies in the zoo."""
TEAM = (
    "![One of three agents reaches a landmark, and two stay between theirs; return -16.2]"
    "(results/simple_spread.gif){width=200}",
    "[MAPPO on simple_spread_v3](guides/teams.md#resume-evaluations-and-videos), return -16.2, whole episode",
)
"""Picture and caption of a team, which is not in the zoo."""
OF_README = ("ppo_halfcheetah", "ppo_hopper", "ppo_walker2d")


def film(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Write the film of a policy of the zoo, and return its return and the command that writes it."""
    scene, file = SCENES[name], folder / f"{name}.webp"
    options = {"video": str(file), "seed": SEED, "width": WIDTH, "fps": FPS, "seconds": scene.seconds}
    given = {key: value for key, value in options.items() if value is not None}
    ((value, _),) = enjoy(f"zoo:{name}", **given)  # type: ignore[arg-type]
    words = [f"zoo:{name}", *(word for key, one in given.items() for word in (f"--{key}", str(one)))]
    return {"return": round(value, 3), "command": shlex.join(["lightning-ding", "enjoy", *words])}


def table(films: Mapping[str, Mapping[str, Any]], names: Sequence[str], folder: str, more: Sequence[Any] = ()) -> str:
    """Return films with their captions as a Markdown table.

    Args:
        films: Content of films.json.
        names: Names of the films.
        folder: Link to their folder.
        more: Pictures and captions of further films.
    """
    cells = [*(_cells(name, films[name]["return"], folder) for name in names), *more]
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    lines = [f"| {' | '.join(one)} |" for row in rows for one in zip(*row, strict=True)]
    return "\n".join([lines[0], f"|{':-:|' * len(rows[0])}", *lines[1:]])


def _cells(name: str, value: float, folder: str) -> tuple[str, str]:
    scene, result = SCENES[name], f"return {return_text(value)}"
    part = "whole episode" if scene.seconds is None else f"first {scene.seconds:g} s"
    return f"![{scene.shows}; {result}]({folder}/{name}.webp)", f"{scene.title}, {result}, {part}"


def main() -> None:
    """Make films, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SCENES, default=[*SCENES], help="films to make; none with no name")
    options = parser.parse_args()
    file = FOLDER / INDEX
    films: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for name in options.only:
        films[name] = film(name)
        print(f"{name}: return {films[name]['return']}, {(FOLDER / f'{name}.webp').stat().st_size:,} bytes", flush=True)
        file.write_text(json.dumps({one: films[one] for one in SCENES if one in films}, indent=1) + "\n")
    home, readme = Path("docs/index.md"), Path("README.md")
    home.write_text(with_table(home.read_text(), table(films, [*SCENES], "results/films", [TEAM]), MARKS))
    readme.write_text(with_table(readme.read_text(), table(films, OF_README, "docs/results/films"), MARKS))


if __name__ == "__main__":
    main()
