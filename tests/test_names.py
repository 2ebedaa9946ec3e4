"""One name for each quantity: ``train_iter``, ``env_step`` and ``policy_version`` keep theirs from the env to the log.

Other spellings stand only where the reference system fixes them: in signatures, config keys, and the names of its log.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import lightning_ding

PACKAGE = Path(lightning_ding.__file__).resolve().parent
ONE_NAME = re.compile(r"(_|data_|_last_|_snapshot_)?(train_iter|env_step|policy_version)")
ANY_NAME = re.compile(r"(env_?steps?|(train|learner|policy|learn)_?iters?|learner_?steps?|versions?)$")
ARGUMENTS = {
    "envstep": "collectors, evaluators, learners and commanders",
    "_envstep": "state of a collector in a checkpoint",
    "collector_envstep": "an attribute of the learner",
    "cur_collector_envstep": "an argument of a buffer's push",
    "cur_learner_iter": "an argument of a buffer's sample",
    "record_train_iter": "an argument of DI-engine's online_logger",
    "trained_env_step": "an attribute of DI-engine's offline context",
    "env_steps": "a number of further env steps, as Agent.train(env_steps=...) counts them",
    "learner_step": "an entry of a commander's and a learner's info",
    "policy_iter": "an entry of a collector's metadata",
    "IS_weight_anneal_train_iter": "a key of DI-engine's configs of the deque buffer",
}
"""Names that the reference fixes, and where."""
LIMITS = {"max_env_step", "max_train_iter"}
OTHER = {
    "version": "of this package, of a logger's folder, or of Python's random state",
    "python_version": "of Python",
    "versions": "of packages",
    "newest_version": "a key in the saved state of a commander",
    "last_version": "a key in the saved state of a league",
}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables, attributes, arguments and keys."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(name)) if name.isidentifier():
                yield name


def test_each_quantity_has_one_name() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        for name in names_in(ast.parse(file.read_text())):
            if ANY_NAME.search(name):
                found[name].add(file.relative_to(PACKAGE).as_posix())

    others = {name: files for name, files in found.items() if not ONE_NAME.fullmatch(name)}
    assert others.keys() == ARGUMENTS.keys() | LIMITS | OTHER.keys(), others
