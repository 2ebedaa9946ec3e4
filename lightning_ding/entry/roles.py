"""One role of a distributed run in this process: the coordinator, a learner or a collector.

    lightning-ding coordinator --config FILE --host 10.0.0.1 --port 5000
    lightning-ding learner --config FILE --host 10.0.0.1 --port 5000
    lightning-ding collector --config FILE --host 10.0.0.1 --port 5000

Exit codes, see :mod:`lightning_ding.utils.exit_codes`:

* 0 when the run is over, 1 after an error;
* 2 for an invalid command or config, or a worker that the coordinator refuses;
* 3 if the coordinator ended the run because tasks failed repeatedly;
* 125 if a worker can no longer reach the coordinator;
* 143 after SIGTERM and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.comm_worker.loop import end_process
from lightning_ding.distributed.comm_worker.role import CommRole
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.transport import Refusal, get_transport
from lightning_ding.entry.config_file import read_config
from lightning_ding.entry.coordinate import CannotStartError, coordinate
from lightning_ding.envs.process.lifeline import die_with
from lightning_ding.utils.exit_codes import INTERRUPTED
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.posix import require_posix_for_distributed

ROLES = ("coordinator", "learner", "collector")
WORKERS: dict[str, type[CommRole]] = {"learner": CommLearner, "collector": CommCollector}
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
NO_TOKEN = "there is no --token, because every user of the machine can read a command line: write it into a file that "
NO_TOKEN += "system.coordinator.token_file names, or into the environment variable LIGHTNING_DING_TOKEN"

NOT_WANTED = (401, 403, 426)  # refusals of a worker because of its token, its folder or channel, or its version

logger = logging.getLogger(__name__)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that reports an error in one line and ends with exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self.add_argument("-c", "--config", required=True, help="YAML file of the run, see docs/distributed.md")
        setting = "a value that overrides the file, such as main.seed=1; may be repeated"
        self.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=setting)
        self.add_argument("--token", action=_RefuseToken, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        """Print the message and end with exit code 2."""
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
    """Run one role until the run is over.

    Args:
        arguments: Role and options; None means ``sys.argv``.

    Raises:
        SystemExit: At the end, with the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    role = given[0] if given else ""
    parser = _parser(role)
    options = parser.parse_args(given[1:])
    _end_with_parent(options.lifeline)
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
        parser.add_argument("--resume", action="store_true", help="resume the run in main.exp_name")
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)  # descriptor, from the supervisor
    return parser


def _run(role: str, cfg: ParallelConfig, options: argparse.Namespace) -> int:
    name = cfg.system.transport
    if get_transport(name).runs_alone:
        raise CannotStartError(f"system.transport {name!r} has no single roles: `parallel` starts all processes")
    if role == "coordinator":
        return coordinate(_listening_at(cfg, options.host, options.port), options.resume)
    address = {"host": options.host, "port": options.port}
    try:
        worker = _make_worker(role, cfg, address)
    except KeyError as error:
        raise CannotStartError(error.args[0]) from error
    except (ValueError, ImportError, OSError) as error:
        raise CannotStartError(str(error)) from error
    if isinstance(worker, CommCollector):
        worker.on_stall = end_process
    try:
        return int(worker.run())
    except Refusal as refusal:
        if refusal.status not in NOT_WANTED:
            raise
        raise CannotStartError(f"the coordinator refuses this {role}: {refusal}") from refusal


def _make_worker(role: str, cfg: ParallelConfig, address: Mapping[str, Any]) -> Any:
    """Return the worker of a role, of the class that the config names."""
    kind = f"comm_{role}"
    if getattr(cfg.system, kind) is None:
        return WORKERS[role](cfg, **address)
    return getattr(foreign("comm_workers"), f"create_{kind}")(cfg, **address)


def _listening_at(cfg: ParallelConfig, host: str | None, port: int | None) -> ParallelConfig:
    section = cfg.system.coordinator
    changed: dict[str, Any] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    system = dataclasses.replace(cfg.system, coordinator=dataclasses.replace(section, **changed))
    return dataclasses.replace(cfg, system=system)


def _end_with_parent(lifeline: int | None) -> None:
    if lifeline is None or "LOCAL_RANK" in os.environ:  # another rank has no such descriptor, and watches rank zero
        return
    os.set_inheritable(lifeline, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _kept.append(Connection(lifeline, writable=False))
    die_with(_kept[0])


_kept: list[Connection] = []  # references, without which the descriptor would be closed

if __name__ == "__main__":
    main()
