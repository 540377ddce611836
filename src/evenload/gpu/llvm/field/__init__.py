"""Arithmetic of prime fields as LLVM IR, one file for each way of keeping digits."""
