"""Configs of DI-engine, translated to this project."""
