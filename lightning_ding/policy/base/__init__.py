"""The parts of every policy: its modes, its config, and how it is built, learns and acts."""
