"""Reinforcement learning as PyTorch Lightning.

Policies are LightningModules, collectors feed a replay DataModule, hooks are Callbacks.
"""

__version__ = "0.1.0"
