"""The command ``export``: write the policy of a checkpoint for use elsewhere.

    lightning-ding export best.ckpt --format onnx --output policy.onnx
    lightning-ding export best.ckpt --format safetensors --output policy.safetensors

``onnx`` (extra ``onnx``) and ``torch_export`` are graphs from observations to greedy actions in the units of the env,
with the normaliser inside. ``safetensors`` holds weights and config, for ``load_policy``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_ding.entry.lightning_cli import in_one_line
from lightning_ding.entry.trained import command_parser, load

FORMATS = {"onnx": "policy.onnx", "torch_export": "policy.pt2", "safetensors": "policy.safetensors"}
"""Formats, and the file that each is written to by default."""


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or checkpoint."""
    parser = command_parser("export", __doc__, has_env=False)
    parser.add_argument("--format", choices=list(FORMATS), default="onnx", help="kind of file")
    parser.add_argument("--agent", type=int, help="number of the agent of a team to write alone, counted from 0")
    parser.add_argument("--output", help="path of the file; by default policy.onnx, policy.pt2 or policy.safetensors")
    options = parser.parse_args(list(arguments)[1:])
    print("written:", in_one_line(lambda: _export(options)))


def _export(options: Any) -> Path:
    output = options.output or FORMATS[options.format]
    return load(options.ckpt, options.policy, options.import_names).export(output, options.format, options.agent)
