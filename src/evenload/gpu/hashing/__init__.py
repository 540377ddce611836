"""Hash functions, written once as arithmetic on words: Python integers, LLVM vectors or WGSL text."""
