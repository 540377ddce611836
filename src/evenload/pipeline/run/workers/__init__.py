"""Workers of runs: kept from one run to the next, and ended when they take too long."""
