"""The workers of a distributed run: what a collector and a learner do in their processes."""
