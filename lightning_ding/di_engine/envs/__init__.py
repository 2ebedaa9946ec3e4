"""Envs with DI-engine's interface."""
