"""The prover's kernels on any GPU that WebGPU reaches."""
