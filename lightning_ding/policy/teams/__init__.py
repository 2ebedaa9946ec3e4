"""Algorithms of teams, one file for each, and the parts that they share."""
