"""Every command and every example of the README runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import lightning_ding.policy  # noqa: F401 - registers the algorithms
from lightning_ding.entry.config_file import read_config
from lightning_ding.entry.roles import Parser
from lightning_ding.registry import POLICY_REGISTRY
from tests.docs.pages import code_of
from tests.processes import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    return code_of(language, page)


def commands(program: str) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith(program)]


def test_readme_has_as_many_examples_as_are_run_here() -> None:
    assert (len(blocks("python")), len(commands("make")), len(commands("lightning-ding"))) == (4, 2, 7)
    assert (len(commands("lightning-ding fit")), len(commands("lightning-ding parallel"))) == (4, 2)
    assert sum(len(block.strip().splitlines()) for block in blocks("bash")) == 9


@pytest.mark.parametrize("number", range(4))
def test_python_example_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(blocks("python")[number].replace("50_000", "1_000"))
    run(script, folder=tmp_path)


@pytest.mark.parametrize("command", commands("lightning-ding parallel"))
def test_distributed_command_of_the_readme_has_a_config(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    options = Parser().parse_args(command.split()[2:])
    cfg = read_config(options.config, options.settings)
    assert cfg.system.transport == ("ray" if "ray" in command else "flask_fs")
    assert cfg.main.policy["type"] == "dqn"


@pytest.mark.parametrize("command", commands("lightning-ding fit"))
def test_command_line_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    short = [] if "--help" in command else ["--data.max_env_step=1000"]
    program = ["-c", "from lightning_ding.entry.lightning_cli import main; main()"]
    run(*program, *command.split()[1:], *short, folder=tmp_path)


@pytest.mark.parametrize("command", commands("make"))
def test_make_target_of_the_readme_exists(command: str) -> None:
    done = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_link_to_a_file_leads_to_one() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = {page: re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL) for page in pages}
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", texts[page])]
    files = [(page, link) for page, link in links if not link.startswith(("http:", "https:"))]
    assert len(pages) >= 20
    assert len(files) >= 100
    assert [f"{page.name}: {link}" for page, link in files if not (page.parent / link).exists()] == []


def test_names_in_the_training_page_exist() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    source = "".join(
        p.read_text() for f in ("lightning_ding", "callbacks", "datamodules") for p in (ROOT / f).rglob("*.py")
    )
    names = set(re.findall(r"`(?:learn|collect|time|eval|progress)/(\w+)`", page))
    assert len(names) >= 10
    assert {name for name in names if name.strip("_") not in source} == set()


DOCS = ROOT / "docs"
PAGES = {page.stem: page.read_text() for page in sorted((DOCS / "algorithms").glob("*.md"))}
ROW = re.compile(r"^\| \[`(\w+)`\]\(algorithms/\1\.md\) \|.*\| ([^|]+) \|$", flags=re.MULTILINE)
NAMES = re.compile(r"^\| `(\w+)` \| \[`(\w+)`\]\(\.\./api/[\w/]+\.md#([\w.]+)\) \|", flags=re.MULTILINE)
OPTION = re.compile(r"`((?:learn|model|collect)\.\w+)` \(([\d.,e-]+)\)")
PARTS = {
    "rnd": "lightning_ding.reward_model.rnd.RNDRewardModel",
    "icm": "lightning_ding.reward_model.icm.ICMRewardModel",
    "gail": "lightning_ding.reward_model.gail.GAILRewardModel",
    "trex": "lightning_ding.reward_model.trex.TREXRewardModel",
    "drex": "lightning_ding.reward_model.drex.DREXRewardModel",
    "guided_cost": "lightning_ding.reward_model.guided_cost.GuidedCostRewardModel",
    "red": "lightning_ding.reward_model.red.REDRewardModel",
    "pwil": "lightning_ding.reward_model.pwil.PWILRewardModel",
    "pdeil": "lightning_ding.reward_model.pdeil.PDEILRewardModel",
    "her": "lightning_ding.worker.buffer.her.HERReplayBuffer",
}
HEADINGS = ["When to use it", "What to tune first", "How it differs", "What was measured"]


def test_every_algorithm_has_a_row_and_a_page() -> None:
    policies = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    classes = {name: f"{one.__module__}.{one.__qualname__}" for name, one in policies.items()}
    ours = {name: path for name, path in classes.items() if path.startswith("lightning_ding.")} | PARTS
    rows = dict(ROW.findall((DOCS / "algorithms.md").read_text()))
    assert set(rows) == set(PAGES) == set(ours)
    for name, page in PAGES.items():
        assert NAMES.findall(page) == [(name, ours[name].rpartition(".")[2], ours[name])]
        assert ("Not measured yet" in page) == (rows[name] == "not yet"), name


@pytest.mark.parametrize("name", PAGES)
def test_page_of_an_algorithm_has_its_recipe_its_config_and_four_headings(name: str) -> None:
    page = PAGES[name]
    assert f"(../../recipes/{name}.py)" in page
    assert re.findall(r"^## (.*)$", page, flags=re.MULTILINE) == HEADINGS
    (config,) = re.findall(r"\(\.\./\.\./(recipes/configs/\w+\.yaml)\)", page)
    assert f"\nlightning-ding fit --config {config}\n" in page
    assert (ROOT / config).read_text().startswith(f"# lightning-ding fit --config {config}\n")


def test_options_of_the_algorithms_have_the_defaults_of_their_pages() -> None:
    options = [(name, *option) for name in PAGES if name in POLICY_REGISTRY for option in OPTION.findall(PAGES[name])]
    assert len(options) >= 60
    for name, path, default in options:
        section, key = path.split(".")
        value = getattr(getattr(POLICY_REGISTRY.get(name).config_class(), section), key)
        assert value is None or value == float(default.replace(",", "")), (name, path, value, default)


def test_every_link_to_a_heading_of_an_algorithm_leads_to_one() -> None:
    pages = [DOCS / "algorithms.md", *(DOCS / "algorithms").glob("*.md")]
    headings = {
        page: set(re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)) for page in DOCS.rglob("*.md")
    }
    anchors = {
        page: {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in all_of}
        for page, all_of in headings.items()
    }
    for page in pages:
        for link, anchor in re.findall(r"\]\(([^)#\s]*\.md)?#([\w-]+)\)", page.read_text()):
            assert anchor in anchors[(page.parent / link).resolve() if link else page], (page.name, link, anchor)
