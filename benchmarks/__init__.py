"""Benchmarks: speed against a bare loop and against peers. Each is run as ``python -m benchmarks.NAME``."""
