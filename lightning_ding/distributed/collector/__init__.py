"""Parallel collectors, which do the collecting and evaluating tasks of a worker."""
