"""Reading the state of envs as plain data, and restoring it in other envs."""
