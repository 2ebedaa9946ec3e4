"""The home page: its example runs, and its numbers are those of the results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import films, versus
from lightning_ding import zoo
from lightning_ding.entry.enjoy import enjoy
from lightning_ding.utils.protocols import return_text
from tests.docs.pages import as_before, code_of, run_page
from tests.test_docs import DOCS

HOME = (DOCS / "index.md").read_text()
README = (DOCS.parent / "README.md").read_text()
FILMS = json.loads((DOCS / "results" / "films" / "films.json").read_text())


def test_example_of_the_home_page_has_twelve_lines_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = code_of("python", HOME)
    assert len(example.splitlines()) == 12
    page = tmp_path / "index.md"
    page.write_text(HOME.replace("50_000", "1_000"))
    with as_before(tmp_path, monkeypatch):
        module = run_page(page)
    assert vars(module)["result"]["test/return_mean"] > 0


def test_every_number_of_the_home_page_is_one_of_the_results() -> None:
    rows = re.findall(
        r"^\| (.*?) \| ([\d.,]+) \| [\w -]+: ([\d.,]+) \| \[commands?\]\((\S+?)#\S+\) \|$", HOME, re.MULTILINE
    )
    assert len(rows) == 5
    for measured, ours, peer, page in rows:
        text = (DOCS / page).read_text()
        compiled = re.findall(r"compiled: ([\d.]+)", measured)
        assert [one for one in [ours, peer, *compiled] if f" {one} |" not in text] == [], measured


@pytest.mark.parametrize(("file", "link"), [("docs/index.md", ""), ("README.md", "docs/")])
def test_table_of_returns_is_what_the_script_writes(file: str, link: str) -> None:
    text = (DOCS.parent / file).read_text()
    pairs = [*versus.learning_pairs(DOCS / "results" / "learn")]
    assert versus.with_table(text, versus.home_table(pairs, f"{link}results/versus.md")) == text, (
        "python -m benchmarks.versus"
    )
    assert len(re.findall(r"^\| \[\w+ on .* env steps\]", text, re.MULTILINE)) == len(versus.HOME)


def test_numbers_of_the_readme_are_those_of_the_home_page() -> None:
    rows = re.findall(r"^\| .* \| \[commands?\]\(.*\) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    assert [row for row in rows if row.replace("](docs/", "](") not in HOME.splitlines()] == []


def test_captions_of_films_have_the_returns_of_their_episodes() -> None:
    home = films.table(FILMS, [*films.SCENES], "results/films", [films.TEAM])
    readme = films.table(FILMS, films.OF_README, "docs/results/films")
    assert versus.with_table(HOME, home, films.MARKS) == HOME, "python -m benchmarks.films --only"
    assert versus.with_table(README, readme, films.MARKS) == README, "python -m benchmarks.films --only"
    assert all(one.count(f"return {return_text(FILMS[name]['return'])}") == 2 for name, one in captions().items())
    assert "with a return of -16.2:" in (DOCS / "guides" / "teams.md").read_text()
    assert films.TEAM[0].count("-16.2") == films.TEAM[1].count("-16.2") == 1


def captions() -> dict[str, str]:
    return {name: " ".join(films._cells(name, FILMS[name]["return"], "")) for name in films.SCENES}


def test_films_are_small_and_have_a_command() -> None:
    files = sorted((DOCS / "results" / "films").glob("*.webp"))
    assert {file.stem for file in files} == set(films.SCENES) == set(FILMS)
    sizes = [file.stat().st_size for file in [*files, DOCS / "results" / "simple_spread.gif"]]
    assert max(sizes) <= 250_000
    assert sum(sizes) <= 1_200_000
    for file in files:
        with Image.open(file) as image:
            film: Any = image
            assert film.width == films.WIDTH
            assert film.n_frames >= 30  # equal ones in a row are one
            assert sum(durations(film)) >= 3000
        assert FILMS[file.stem]["command"].startswith(
            f"lightning-ding enjoy zoo:{file.stem} --video docs/results/films/"
        )


def durations(film: Any) -> Iterator[int]:
    """Yield the milliseconds of each frame."""
    for number in range(film.n_frames):
        film.seek(number)
        film.load()
        yield film.info["duration"]


@pytest.mark.parametrize("name", ["dqn_cartpole", "sac_pendulum"])
def test_policy_of_a_film_plays_its_episode_again(name: str) -> None:
    ((value, _),) = enjoy(f"zoo:{name}", seed=films.SEED, shown=False)
    assert value == pytest.approx(FILMS[name]["return"], abs=0.1)  # other CPUs round differently


@pytest.mark.parametrize("name", films.SCENES)
def test_episode_of_a_film_is_one_of_a_trained_policy(name: str) -> None:
    mean = zoo.find(name).mean_return
    assert FILMS[name]["return"] >= mean - 0.25 * abs(mean)
