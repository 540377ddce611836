"""`evenload bench` and the benchmarks of single commands."""
