"""Machine code: shipped with the package, else compiled once and kept for this user, and loaded from there.

A program or a kernel is looked for in this order: an object file that came with the package, made for a
baseline that this processor has and from the same code; one in the user's private cache; the compiler.
Needs llvmlite to load, and numba to compile kernels written in Python; both come with the extra ``kernels``.
"""
