"""``python -m lightning_ding``: the same as ``lightning-ding``."""

from __future__ import annotations

from lightning_ding.entry.cli import main

if __name__ == "__main__":
    main()
