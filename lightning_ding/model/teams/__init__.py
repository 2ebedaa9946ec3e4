"""Networks of teams: those of the agents, mixers of their values, and centralised critics."""
