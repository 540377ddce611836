"""What a stage costs: work from its config, speed from hardware tables, times and memory seen before."""
