"""Models and hyper-parameters of Stable-Baselines3: their files, networks and settings, read without running code."""
