"""Reinforcement learning as PyTorch Lightning.

Policies are LightningModules, DataModules collect and replay data, and Callbacks stop, save and log a run.
"""

__version__ = "0.1.0"
