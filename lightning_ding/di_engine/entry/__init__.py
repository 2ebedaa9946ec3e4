"""DI-engine's serial entries, and their commands."""
