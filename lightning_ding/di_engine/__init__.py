"""Configs, envs and checkpoints of DI-engine, translated to this project.

:mod:`configs` reads and merges a pair of configs, :mod:`defaults` lists the defaults of DI-engine that differ from
ours, :mod:`keys` says where each key of a policy goes, :mod:`env_types` translates the envs, :mod:`translate` makes a
run of all of it, and :mod:`convert` writes the run as YAML and as a recipe. :mod:`checkpoint` loads weights.
"""
