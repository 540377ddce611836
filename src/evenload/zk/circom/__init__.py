"""Witnesses from inputs, by the WASM that circom compiles a circuit to, run in a sandbox with limits."""
