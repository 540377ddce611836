"""Started by test_device.py: puts each kernel through Triton's compiler for an H100, which needs no GPU."""

import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from evenload.moe.cloning.kernels.device_clone import clone_kernel
from evenload.moe.routing.kernels.dispatch import count_kernel, map_kernel, share_kernel
from evenload.moe.routing.kernels.route import route_kernel

SIZES = {
    route_kernel: {"C": 4, "S": 4, "N_TREES": 3, "BLOCK_E": 256, "BLOCK_G": 32, "BLOCK_R": 64},
    count_kernel: {"BLOCK": 128},
    map_kernel: {"C": 4, "BLOCK": 128},
    share_kernel: {"C": 4, "BLOCK_N": 32},
    clone_kernel: {"BLOCK_E": 256, "BLOCK_G": 64},
}
NUMBERS = {"E", "P", "G", "R", "N", "n", "rank", "n_domains", "cap", "fewest", "millionths"}
OTHERS = {"cut": "*i8", "ids": "*i64", "out": "*i64"}

for kernel, sizes in SIZES.items():
    rest = "*i64" if kernel is clone_kernel else "*i32"
    kind = {name: "i32" if name in NUMBERS else OTHERS.get(name, rest) for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in sizes.items()}
    source = ASTSource(fn=kernel, signature=kind | dict.fromkeys(sizes, "constexpr"), constexprs=constants)
    compiled = compile_kernel(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.asm["cubin"]
sys.stdout.write(f"{len(SIZES)} kernels")
