"""What every other part uses: counters, schedules, ranks, interfaces. It imports none of the parts."""
