"""The console script ``lightning-ding``: help and version at once, any other command from the module that runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lightning_ding import __version__
from lightning_ding.config import closest

POLICIES = ("a2c", "c51", "ddpg", "dqn", "pg", "ppo", "qrdqn", "rainbow", "sac", "td3")
"""What is registered when nothing of the user is imported; to ask the registry would import torch."""
COMMANDS = {
    "fit": "train a policy",
    "validate": "evaluate a checkpoint on the episodes of validation",
    "test": "evaluate a checkpoint on episodes that no validation has",
    "parallel": "a distributed run on this machine: a coordinator, a learner and collectors",
    "coordinator": "the coordinator of a distributed run",
    "learner": "a learner of a distributed run",
    "collector": "a collector of a distributed run",
    "ask": "send one message to a coordinator: status, increase_collector, decrease_collector, shutdown",
}
DISTRIBUTED = ("parallel", "coordinator", "learner", "collector", "ask")
HELP = """usage: lightning-ding COMMAND [options]

Reinforcement learning as PyTorch Lightning.

commands:
{commands}

policies (--policy NAME of fit, validate and test, or the dotted path of a class):
  {policies}

options:
  -h, --help  show this text; lightning-ding COMMAND --help shows the options of a command,
              lightning-ding fit --policy NAME --help those of a policy
  --version   show the version

examples:
  lightning-ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 50000
  lightning-ding fit --config run.yaml --ckpt_path last
  lightning-ding parallel --config run.yaml --set main.seed=1

LIGHTNING_DING_DEBUG=1 in the environment shows the traceback of an error that is otherwise one line."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes ``sys.argv``.

    Raises:
        SystemExit: With 2 for a wrong command line, and as the command says.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else ""
    if command in ("-h", "--help"):
        commands = "\n".join(f"  {name:<12} {meaning}" for name, meaning in COMMANDS.items())
        print(HELP.format(commands=commands, policies=", ".join(POLICIES)))
    elif command == "--version":
        print(f"lightning-ding {__version__}")
    elif command not in COMMANDS and not command.startswith("-"):
        near = closest(command, COMMANDS)
        hint = f"did you mean {near!r}? " if near else ""
        print(f"error: unknown subcommand {command!r}; {hint}Known: {', '.join(COMMANDS)}", file=sys.stderr)
        raise SystemExit(2)
    else:
        sys.path.append(os.getcwd())  # envs and policies of the user
        home = "parallel" if command in DISTRIBUTED else "cli"
        import_module(f"lightning_ding.entry.{home}").main(given if command in DISTRIBUTED else arguments)
