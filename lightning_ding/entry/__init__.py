"""Entries: the command line."""
