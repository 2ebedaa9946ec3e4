"""Configs, transitions and learners of distributed runs in DI-engine's form."""
