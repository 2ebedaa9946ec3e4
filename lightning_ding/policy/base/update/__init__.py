"""From a loss to new weights: one optimisation step, eager or compiled, that checks for non-finite values."""
