"""The command ``tune``: search for hyper-parameters with Optuna, and write the best settings as a config file.

    lightning-ding tune --config recipes/configs/dqn_cartpole.yaml --data.max_env_step 10000 --trials 20
    lightning-ding tune --config run.yaml --space learn.learning_rate=log(1e-4,1e-2) --space nstep
    lightning-ding tune --config run.yaml --jobs 2
    lightning-ding tune --config run.yaml --folder runs/tune/dqn   # on several machines: they share the study

All options of ``fit`` define the run that is tuned. A section ``tune`` of the config file has settings of the search.
Without ``--space``, all fields are searched that declare a space; ``--list_spaces`` shows them.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import parse_from_object

from lightning_ding.config import deep_merge, require, resolve
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.tune.config import DECLARED, TuneConfig, find_spaces, read_files
from lightning_ding.tune.study import Study
from lightning_ding.tune.trial_run import RunMaker
from lightning_ding.utils.exit_codes import BY_SIGNAL

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or config."""
    options, rest = _parser().parse_known_args(list(arguments)[1:])
    lightning = logging.getLogger("lightning.pytorch")
    level = lightning.level
    lightning.setLevel(logging.WARNING)  # each trial would print the same lines
    try:
        in_one_line(lambda: _tune(vars(options), rest, list(arguments)))
    finally:
        lightning.setLevel(level)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="lightning-ding tune",
        description=__doc__,
        epilog="All options of fit are options of this command too: lightning-ding fit --help",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("-c", "--config", action="append", help="config file of fit, with a section tune if you like")
    parser.add_argument("--folder", help="folder of the study; by default runs/tune and the name of the config file")
    parser.add_argument("--space", action="append", metavar="FIELD[=SPACE]", help="a field to search, and its space")
    parser.add_argument("--jobs", type=int, help="processes that share the trials (default: 1)")
    parser.add_argument("--list_spaces", action="store_true", help="show the search spaces, and end")
    meanings = {one.arg_name: one.description or "" for one in parse_from_object(TuneConfig).params}
    for field in dataclasses.fields(TuneConfig):
        if field.name != "spaces":
            parser.add_argument(f"--{field.name}", type=yaml.safe_load, help=meanings[field.name].replace("%", "%%"))
    return parser


def _tune(options: dict[str, Any], rest: list[str], arguments: list[str]) -> None:
    files: list[str] = options.pop("config", [])
    jobs: int = options.pop("jobs", 1)
    require(jobs >= 1, "jobs", ">= 1", jobs)
    folder = options.pop("folder", Path("runs") / "tune" / (Path(files[-1]).stem if files else "study"))
    spaces = dict(_space(text) for text in options.pop("space", []))
    only_list = options.pop("list_spaces", False)
    run, section = read_files(files)
    given = deep_merge(section, options | ({"spaces": spaces} if spaces else {}))
    if spaces:
        given["spaces"] = spaces  # in place of those of the files
    if only_list:
        config = resolve(TuneConfig, given, "tune.")
        for name, space in find_spaces(RunMaker([*run, *rest]).config, config.spaces).items():
            print(f"{name}: {space}")
        return
    study = Study([*run, *rest], folder, given)
    with _helpers(jobs - 1, arguments, Path(folder)):
        print(study.run().summary)


@contextmanager
def _helpers(number: int, arguments: list[str], folder: Path) -> Iterator[None]:
    """Run the same command in further processes, which share the study, and end them with this one.

    Their output is in ``job_1.txt`` and so on in the folder of the study. SIGTERM ends them too.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // (number + 1))), **os.environ}
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        for job in range(1, number + 1):
            with (folder / f"job_{job}.txt").open("wb") as output:
                command = [sys.executable, "-m", "lightning_ding", *arguments, "--jobs", "1"]
                helpers.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment))
        yield
        for job, helper in enumerate(helpers, 1):
            if helper.wait():
                logger.warning("process %d failed, see %s", job, folder / f"job_{job}.txt")
    finally:
        for helper in helpers:
            helper.terminate()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: Any) -> None:
    raise SystemExit(BY_SIGNAL + number)


def _space(text: str) -> tuple[str, str]:
    name, equals, space = text.partition("=")
    return name, space if equals else DECLARED
