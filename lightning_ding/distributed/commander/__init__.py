"""Commanders, which decide on the next task, its weights, and the end of a run."""
