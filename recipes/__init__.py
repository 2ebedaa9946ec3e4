"""Recipes are programs to run and to copy from, not a library."""

raise ImportError("recipes are scripts: run `python recipes/dqn.py`, or copy what you need")
