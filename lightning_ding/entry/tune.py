"""The command ``tune``: search for hyper-parameters with Optuna, and write the best settings as a config file.

    lightning-ding tune --config recipes/configs/dqn_cartpole.yaml --data.max_env_step 10000 --trials 20
    lightning-ding tune --config run.yaml --space learn.learning_rate=log(1e-4,1e-2) --space nstep
    lightning-ding tune --config run.yaml --folder runs/tune/dqn   # in several terminals: they share the study

All options of ``fit`` define the run that is tuned. A section ``tune`` of the config file has settings of the search.
Without ``--space``, all fields are searched that declare a space; ``--list_spaces`` shows them.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import parse_from_object

from lightning_ding.config import deep_merge, resolve
from lightning_ding.entry.lightning_cli import is_refusal, line_of
from lightning_ding.entry.serial_cli import CommandParser
from lightning_ding.tune.config import DECLARED, TuneConfig, find_spaces, read_files
from lightning_ding.tune.study import Study
from lightning_ding.tune.trial_run import RunMaker


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: ``tune`` and its options.

    Raises:
        SystemExit: With code 2 for an invalid command line or config.
    """
    options, rest = _parser().parse_known_args(list(arguments)[1:])
    lightning = logging.getLogger("lightning.pytorch")
    level = lightning.level
    lightning.setLevel(logging.WARNING)  # each trial would print the same lines
    try:
        _tune(vars(options), rest)
    except Exception as error:
        if not is_refusal(error):
            raise
        print("error:", line_of(error), file=sys.stderr)
        raise SystemExit(2) from error
    finally:
        lightning.setLevel(level)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="lightning-ding tune",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog="All options of fit are options of this command too: lightning-ding fit --help",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("-c", "--config", action="append", help="config file of fit, with a section tune if you like")
    parser.add_argument("--folder", help="folder of the study; by default runs/tune and the name of the config file")
    parser.add_argument("--space", action="append", metavar="FIELD[=SPACE]", help="a field to search, and its space")
    parser.add_argument("--list_spaces", action="store_true", help="show the search spaces, and end")
    meanings = {one.arg_name: one.description or "" for one in parse_from_object(TuneConfig).params}
    for field in dataclasses.fields(TuneConfig):
        if field.name != "spaces":
            parser.add_argument(f"--{field.name}", type=yaml.safe_load, help=meanings[field.name].replace("%", "%%"))
    return parser


def _tune(options: dict[str, Any], rest: list[str]) -> None:
    files: list[str] = options.pop("config", [])
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
    print(Study([*run, *rest], folder, given).run().summary)


def _space(text: str) -> tuple[str, str]:
    name, equals, space = text.partition("=")
    return name, space if equals else DECLARED
