"""The prover's kernels on the CPU: transforms, sums of multiples, pairings."""
