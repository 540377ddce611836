"""Kernels in WGSL, run through wgpu on any vendor's GPU: Vulkan, Metal or Direct3D 12 (extra: wgpu).

    context   one adapter, opened and tested; opened again when the driver loses it
    kernel    a kernel's source, its bindings and parameters, and the memory that is bound
    queue     work in submissions that stay far below a driver's time limit
    words     the arithmetic of ``gpu.hashing`` as WGSL text;  hashes  kernels made of it, and Poseidon's
    field     arithmetic modulo a prime of BN254, with or without 64-bit integers;  sums  of points
Importing this package loads neither wgpu nor a driver.
"""
