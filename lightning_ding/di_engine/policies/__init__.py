"""Policies that are written as DI-engine's documentation describes."""
