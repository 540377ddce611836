"""Hash functions as LLVM IR, many messages side by side."""
