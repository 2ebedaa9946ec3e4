"""How many entries of rl-baselines3-zoo ``from-sb3 --zoo`` translates, and which keys have no equivalent.

    python -m benchmarks.sb3_zoo PATH/TO/rl-baselines3-zoo/hyperparams

An entry counts as translated if the policy here accepts the settings. Nothing is trained, and no env is made.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from lightning_ding.entry.from_sb3 import zoo_page
from lightning_ding.sb3.zoo import WITHOUT_POLICY, read_zoo, translate_entry


class File(NamedTuple):
    """The entries of a file of the zoo, translated, without a policy here, or refused."""

    name: str
    entries: int
    whole: int
    """Entries of which every key has an equivalent."""
    refused: dict[str, str]
    """Errors by env."""
    keys: Counter[str]
    """Keys without an equivalent, with the number of entries that have them."""


def translate_file(path: Path) -> File:
    """Translate the entries of a file."""
    entries, refused, keys, whole = read_zoo(path), {}, Counter[str](), 0
    for env_id, entry in entries.items():
        try:
            run = translate_entry(path.stem, env_id, entry)
            zoo_page(run, "an entry")
        except (ValueError, TypeError) as error:
            refused[env_id] = str(error)
            continue
        keys.update(list(run.without))
        whole += not run.without
    return File(path.stem, len(entries), whole, refused, keys)


def table(files: list[File]) -> str:
    """Return the rows of the table of docs/results.md."""
    rows = ["| file | entries | translated | every key | keys without equivalent (entries) |", "|---|---|---|---|---|"]
    for file in files:
        keys = ", ".join(f"`{key}` ({number})" for key, number in file.keys.most_common()) or "none"
        keys = WITHOUT_POLICY.get(file.name, keys)
        translated = file.entries - len(file.refused)
        rows.append(f"| `{file.name}.yml` | {file.entries} | {translated} | {file.whole} | {keys} |")
    entries, whole = sum(file.entries for file in files), sum(file.whole for file in files)
    refused = sum(len(file.refused) for file in files)
    return "\n".join([*rows, f"| all | {entries} | {entries - refused} | {whole} | |"])


def main() -> None:
    """Print the table, and the errors of entries that are not translated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the zoo's YAML files")
    files = [translate_file(path) for path in sorted(parser.parse_args().folder.glob("*.yml"))]
    print(table(files))
    for file in files:
        for env_id, error in file.refused.items():
            if file.name not in WITHOUT_POLICY:
                print(f"{file.name} {env_id}: {error}")


if __name__ == "__main__":
    main()
