"""Distributed runs: a coordinator, learners and collectors in processes of their own, on one machine or many."""
