"""CPU kernels, written as LLVM IR by Python and compiled on the machine that runs them (extra: kernels)."""
