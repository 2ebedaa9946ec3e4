"""A distributed run with one command, everything on this machine.

    lightning-ding parallel --config recipes/configs/parallel_dqn_cartpole.yaml
    lightning-ding parallel --config FILE --set main.seed=1 --set system.collector.num=4
    lightning-ding parallel --config FILE --resume

The exit code is 0 when the run is finished, 1 if it failed, 2 for a wrong command or config, 130 after Ctrl-C and 143
after SIGTERM; then --resume goes on with it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from lightning_ding.config import ConfigLike, resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.entry import ask
from lightning_ding.entry.config_file import check, check_env
from lightning_ding.entry.roles import Parser
from lightning_ding.entry.roles import main as be_role
from lightning_ding.entry.supervisor import Supervisor
from lightning_ding.posix import require_posix_for_distributed


def parallel_pipeline(cfg: ConfigLike[ParallelConfig] = None, resume: bool = False) -> dict[str, Any]:
    """Run coordinator, learner and collectors on this machine until the run is over.

    Args:
        cfg: Of the run.
        resume: Go on with the run in ``main.exp_name``.

    Returns:
        What stands in ``result.json``: env_step, train_iter, episodes, seconds, evaluations, results of the learner,
        counters.

    Raises:
        ValueError: If the config is wrong, ``main.exp_name`` holds another run, or the system is not POSIX.
        RuntimeError: If the run was given up.
        SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal.
    """
    require_posix_for_distributed()
    cfg = resolve(ParallelConfig, cfg)
    check(cfg)
    if cfg.system.ray_address is None:  # everything is on this machine
        check_env(cfg)
    if cfg.system.transport == "ray":
        from lightning_ding.distributed.ray.pipeline import run_on_ray

        return run_on_ray(cfg, resume)
    return Supervisor(cfg, resume).run()


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands ``parallel``, ``coordinator``, ``learner``, ``collector`` and ``ask``.

    Args:
        arguments: The command and its options.

    Raises:
        SystemExit: If it does not end well.
    """
    if arguments[0] == "ask":
        ask.main(arguments[1:])
        return
    if arguments[0] != "parallel":
        be_role(arguments)
        return
    parser = Parser(prog="lightning-ding parallel", description=__doc__)
    parser.add_argument("--resume", action="store_true", help="go on with the run in main.exp_name")
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
    print(json.dumps(result, indent=1))
