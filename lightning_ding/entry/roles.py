"""One role of a distributed run in this process: the coordinator, a learner or a collector.

    lightning-ding coordinator --config FILE --host 10.0.0.1 --port 5000
    lightning-ding learner --config FILE --host 10.0.0.1 --port 5000
    lightning-ding collector --config FILE --host 10.0.0.1 --port 5000

The exit codes are those of :mod:`lightning_ding.exit_codes`: 0 when the run is over, 1 after an error, 2 for a wrong
command or config or a worker that the coordinator does not take, 3 if the coordinator gave the run up, 125 if a worker
found no coordinator any more, 143 after SIGTERM and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from lightning_ding.distributed import create_comm_collector, create_comm_learner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.worker_loop import end_process
from lightning_ding.entry.config_file import read_config
from lightning_ding.entry.coordinate import CannotStartError, coordinate
from lightning_ding.envs.process.life import die_with
from lightning_ding.exit_codes import INTERRUPTED
from lightning_ding.posix import require_posix_for_distributed

ROLES = ("coordinator", "learner", "collector")
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
NO_TOKEN = "there is no --token, because everybody on the machine can read a command line: write it into a file that "
NO_TOKEN += "system.coordinator.token_file names, or into the environment variable LIGHTNING_DING_TOKEN"

NOT_WANTED = (401, 403, 426)  # refusals of a worker as such: a token, a folder or channel, a version

logger = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and whose mistakes are one line and exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self.add_argument("-c", "--config", required=True, help="YAML file of the run, see docs/distributed.md")
        setting = "a value that goes before the file's, such as main.seed=1; any number of times"
        self.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=setting)
        self.add_argument("--token", action=_RefuseToken, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        """Print the message and end."""
        print("error:", " ".join(message.split()), file=sys.stderr)
        raise SystemExit(2)

    def read(self, options: argparse.Namespace) -> ParallelConfig:
        """Return the config that the options name."""
        try:
            require_posix_for_distributed()
            return read_config(options.config, options.settings)
        except (ValueError, TypeError, KeyError, ImportError) as error:
            self.error(str(error.args[0] if error.args else error))


class _RefuseToken(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> NoReturn:
        parser.error(NO_TOKEN)


def main(arguments: Sequence[str] | None = None) -> None:
    """Be one role until the run is over.

    Args:
        arguments: The role and its options; None takes ``sys.argv``.

    Raises:
        SystemExit: At the end, with the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    role = given[0] if given else ""
    parser = _parser(role)
    options = parser.parse_args(given[1:])
    _die_with_the_one_that_started_this(options.lifeline)
    logging.basicConfig(format=LOG_FORMAT, level=logging.INFO)
    cfg = parser.read(options)
    try:
        code = _run(role, cfg, options)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except CannotStartError as error:
        parser.error(str(error))
    except Exception:
        logger.exception("the %s ends", role)
        code = 1
    raise SystemExit(code)


def add_address(parser: Parser, what: str) -> None:
    """Add the options ``--host`` and ``--port``."""
    parser.add_argument("--host", help=what)
    parser.add_argument("--port", type=int, help=what)


def _parser(role: str) -> Parser:
    parser = Parser(prog=f"lightning-ding {role}", description=__doc__)
    if role not in ROLES:
        parser.error(f"the role must be one of {', '.join(ROLES)}, got {role!r}")
    where = "address to listen at" if role == "coordinator" else "where the coordinator listens"
    add_address(parser, where)
    if role == "coordinator":
        parser.add_argument("--resume", action="store_true", help="go on with the run in main.exp_name")
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)  # descriptor, from the supervisor
    return parser


def _run(role: str, cfg: ParallelConfig, options: argparse.Namespace) -> int:
    if cfg.system.transport != "flask_fs":
        raise CannotStartError("single roles are for system.transport 'flask_fs'; `parallel` starts everything on ray")
    if role == "coordinator":
        return coordinate(_listening_at(cfg, options.host, options.port), options.resume)
    section = cfg.system.learner if role == "learner" else cfg.system.collector
    if section.num_threads is not None:
        torch.set_num_threads(section.num_threads)
    create = create_comm_learner if role == "learner" else create_comm_collector
    try:
        worker = create(cfg, host=options.host, port=options.port)
    except (ValueError, ImportError, OSError) as error:
        raise CannotStartError(str(error)) from error
    if role == "collector":
        worker.on_stall = end_process
    try:
        return int(worker.start() or 0)
    except Refusal as refusal:
        if refusal.status not in NOT_WANTED:
            raise
        raise CannotStartError(f"the coordinator does not take this {role}: {refusal}") from refusal


def _listening_at(cfg: ParallelConfig, host: str | None, port: int | None) -> ParallelConfig:
    section = cfg.system.coordinator
    changed: dict[str, Any] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    system = dataclasses.replace(cfg.system, coordinator=dataclasses.replace(section, **changed))
    return dataclasses.replace(cfg, system=system)


def _die_with_the_one_that_started_this(lifeline: int | None) -> None:
    if lifeline is None or "LOCAL_RANK" in os.environ:  # a further rank has no such descriptor, and watches rank zero
        return
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the one that started this
    _kept.append(Connection(lifeline, writable=False))
    die_with(_kept[0])


_kept: list[Connection] = []  # or the descriptor would be closed

if __name__ == "__main__":
    main()
