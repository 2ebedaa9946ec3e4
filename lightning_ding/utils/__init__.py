"""Counters, schedules, ranks and interfaces, which all other parts use; nothing here imports a part."""
