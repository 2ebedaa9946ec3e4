"""The command ``zoo``: trained policies that come with the package.

    lightning-ding zoo list
    lightning-ding zoo get ppo_halfcheetah --output policy.safetensors
    lightning-ding zoo enjoy ppo_halfcheetah --video cheetah.mp4

``zoo:NAME`` is also a policy of the commands ``enjoy``, ``evaluate``, ``collect`` and ``export``, and of
``load_policy``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_ding import zoo
from lightning_ding.entry.compare import aligned
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.utils.protocols import return_text


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or an unknown policy."""
    given = list(arguments)[1:]
    if given[:1] == ["enjoy"] and given[1:] and not given[1].startswith("-"):
        from lightning_ding.entry import enjoy

        enjoy.main(["enjoy", zoo.PREFIX + given[1].removeprefix(zoo.PREFIX), *given[2:]])
        return
    parser = CommandParser(prog="lightning-ding zoo", description=__doc__)
    commands = parser.add_subparsers(dest="action", required=True)
    shown = commands.add_parser("list", help="show the policies and their returns")
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    copied = commands.add_parser("get", help="copy the file of a policy")
    copied.add_argument("name", help="name of a policy")
    copied.add_argument("--output", type=Path, help="path of the copy (default: NAME.safetensors)")
    watched = commands.add_parser("enjoy", help="watch a policy; takes the options of lightning-ding enjoy")
    watched.add_argument("name", help="name of a policy")
    options = parser.parse_args(given)
    if options.action == "list":
        print(listing(options.json))
    else:
        print("written:", in_one_line(lambda: copy(options.name, options.output), (OSError,)))


def listing(as_json: bool = False) -> str:
    """Return the policies as a table for a terminal, or as JSON."""
    found = zoo.policies().values()
    if as_json:
        return json.dumps({one.name: asdict(one) for one in found})
    head = ["name", "policy", "env", "mean return", "episodes", "env steps", "commit"]
    rows = [_row(one) for one in found]
    return aligned([head, *rows])


def _row(one: zoo.ZooPolicy) -> list[str]:
    cells = [one.name, one.policy, one.env_id, return_text(one.mean_return), f"{one.episodes}"]
    return [*cells, f"{one.env_step:,}", one.commit]


def copy(name: str, output: Path | None = None) -> Path:
    """Copy the file of a policy, and return the path of the copy.

    Args:
        name: Name of a policy of the zoo.
        output: Path of the copy; None means the name with ``.safetensors`` in the working directory.
    """
    found = zoo.find(name)
    path = Path(found.file.name) if output is None else output
    shutil.copyfile(found.file, path)
    return path
