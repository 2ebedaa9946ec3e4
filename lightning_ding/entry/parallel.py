"""A distributed run with one command, everything on this machine.

    lightning-ding parallel --config recipes/configs/parallel_dqn_cartpole.yaml
    lightning-ding parallel --config FILE --set main.seed=1 --set system.collector.num=4
    lightning-ding parallel --config FILE --resume
    lightning-ding parallel --config FILE --json > result.json

Every ten seconds a line tells how far the run is, and the last line how it ended; --json writes the result instead.
The exit code is 0 when the run is finished, 1 if it failed, 2 for an invalid command or config, 130 after Ctrl-C and
143 after SIGTERM; then --resume continues the run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lightning_ding.config import ConfigLike, require
from lightning_ding.distributed.config import ParallelConfig, read_run
from lightning_ding.distributed.progress import last_line
from lightning_ding.distributed.transport import CoordinatorGoneError, Refusal, get_transport
from lightning_ding.entry.config_file import check, check_env, read_config
from lightning_ding.entry.roles import Parser, add_address, main as be_role
from lightning_ding.entry.supervisor import RunSupervisor
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.posix import require_posix_for_distributed


def parallel_pipeline(
    cfg: ConfigLike[ParallelConfig] | tuple[Any, Any, Any] | str | Path = None,
    resume: bool | int = False,
    seed: int | None = None,
) -> dict[str, Any]:
    """Run coordinator, learner and collectors on this machine until the run is over.

    Args:
        cfg: Config of the run, also in DI-engine's format: compiled, or ``(main_config, create_config,
            system_config)``. A path is that of a YAML or JSON file, or of a Python file with DI-engine's three configs,
            which is run as code.
        resume: Whether to resume the run in ``main.exp_name``. With three configs, where DI-engine has the seed second,
            an int is the seed.
        seed: Seed of a run with three configs, 0 by default; otherwise None, because ``main.seed`` holds it.

    Returns:
        The content of ``result.json``: env_step, train_iter, episodes, seconds, evaluations, results of the learner,
        counters.

    Raises:
        ValueError: If the config is wrong, ``main.exp_name`` holds another run, or the system is not POSIX.
        RuntimeError: If the run was given up.
        SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal.
    """
    require_posix_for_distributed()
    if isinstance(cfg, (str, Path)):
        cfg = cast(Any, foreign("configs").read_triple(cfg) if Path(cfg).suffix == ".py" else read_config(cfg))
    if isinstance(cfg, (tuple, list)):
        if not isinstance(resume, bool):
            resume, seed = False, resume
        require(len(cfg) == 3, "cfg", "three configs, for main, create and system", f"{len(cfg)} of them")
        cfg, seed = foreign("parallel_config").compile_run(*cfg, seed or 0), None
    require(seed is None, "seed", "None with one config, whose main.seed counts", seed)
    require(isinstance(resume, bool), "resume", "a bool", resume)
    cfg = read_run(cast(Any, cfg))
    check(cfg)
    if cfg.system.ray_address is None:  # all processes run on this machine
        check_env(cfg)
    transport = get_transport(cfg.system.transport)
    resumes = bool(resume)
    return transport.run(cfg, resumes) if transport.runs_alone else RunSupervisor(cfg, resumes).run()


def main(arguments: Sequence[str]) -> None:
    """Run ``parallel``, ``coordinator``, ``learner``, ``collector`` or ``ask``, and exit with its code if it fails."""
    if arguments[0] == "ask":
        ask(arguments[1:])
        return
    if arguments[0] != "parallel":
        be_role(arguments)
        return
    parser = Parser(prog="lightning-ding parallel", description=__doc__)
    parser.add_argument("--resume", action="store_true", help="resume the run in main.exp_name")
    parser.add_argument("--json", action="store_true", help="write the result as JSON to stdout")
    options = parser.parse_args(list(arguments[1:]))
    cfg = parser.read(options)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        result = parallel_pipeline(cfg, options.resume)
    except (ValueError, TypeError, ImportError, ConnectionError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        print("error:", error, file=sys.stderr)
        raise SystemExit(1) from error
    print(json.dumps(result, indent=1) if options.json else last_line(result, cfg.main.exp_name))


ASK = """Send one message to the coordinator of a distributed run, and print its answer as JSON.

    lightning-ding ask status --config FILE
    lightning-ding ask increase_collector '{"n": 2}' --config FILE
    lightning-ding ask shutdown --config FILE --host 10.0.0.1 --port 5000

The exit code is 0 after an answer, 1 after a refusal or none, 2 for an invalid command or config.
"""


MESSAGES = ("status", "increase_collector", "decrease_collector", "set_collectors", "shutdown")
PATIENCE = 10.0  # seconds for an answer


def ask(arguments: Sequence[str]) -> None:
    """Send one message to the coordinator and print the answer; exit with an error code after a refusal or none."""
    parser = Parser(prog="lightning-ding ask", description=ASK)
    parser.add_argument("name", choices=MESSAGES, metavar="MESSAGE", help=", ".join(MESSAGES))
    parser.add_argument("content", nargs="?", default="{}", metavar="JSON", help='such as {"n": 2}')
    add_address(parser, "where the coordinator listens")
    options = parser.parse_args(list(arguments))
    cfg, content = parser.read(options), _parse(parser, options.content)
    if get_transport(cfg.system.transport).runs_alone:
        parser.error(f"`ask` cannot reach a coordinator of system.transport {cfg.system.transport!r}")
    try:
        answer = _ask(cfg, options.host, options.port, options.name, content)
    except (ValueError, ImportError, OSError) as error:
        parser.error(str(error))
    except (Refusal, CoordinatorGoneError) as error:
        print("error:", error, file=sys.stderr)
        raise SystemExit(1) from error
    print(json.dumps(answer, indent=1))


def _ask(cfg: ParallelConfig, host: str | None, port: int | None, name: str, content: dict[str, Any]) -> dict[str, Any]:
    patience = min(PATIENCE, cfg.system.reconnect_timeout)
    cfg = dataclasses.replace(cfg, system=dataclasses.replace(cfg.system, reconnect_timeout=patience))
    channel = get_transport(cfg.system.transport).connect(cfg, host, port)
    try:
        return channel.call(name, content)
    finally:
        channel.close()


def _parse(parser: Parser, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        parser.error(f"{text!r} is not valid JSON: {error}")
    if not isinstance(content, dict):
        parser.error(f'a message must be a JSON object, such as {{"n": 2}}, got {text!r}')
    return content
