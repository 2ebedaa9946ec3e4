"""Envs of teams: adapters of other packages' envs, and small games with known returns."""
