"""Workers in DI-engine's form: policies that act by env, and the commander."""
