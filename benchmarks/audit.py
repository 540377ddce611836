"""Audits of large traces: seconds and memory for ten million spans of a torch profiler's trace.

    python benchmarks/audit.py [--spans 10000000] [--plain]

Makes a trace as the torch profiler writes it for eight GPUs: kernels and collectives with all of their
arguments, and short sets of memory between them. An audit of it runs in a process of its own, as
`evenload audit TRACE --json -o REPORT`. The file has about 4 GB; it is removed again.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import record

N_GPUS = 8
SECOND = "#"  # stands for the number of a second
NAMES = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t>>",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)


def write_trace(path: Path, n_spans: int) -> None:
    """Write a trace in which every second span is a kernel, and the others set memory.

    The lines of the first second come again in each later one, with the number of their second.
    """
    lines = second_of_spans()
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms",\n')
        file.write('"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [\n')
        for second, first in enumerate(range(0, n_spans, len(lines)), 1):
            file.write("".join(lines[: n_spans - first]).replace(SECOND, str(second)))
        file.write(
            '{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}}\n]}\n'
        )


def second_of_spans() -> list[str]:
    """The spans of a second, with ``SECOND`` before the other digits of their times and numbers."""
    chance = random.Random(1)
    free, lines = [0.0] * N_GPUS, []
    while True:
        at = len(lines)
        gpu = at // 2 % N_GPUS
        begin = free[gpu] + (250.0 if at % 997 < 2 else chance.choice((0.5, 1.5, 3.0)))
        free[gpu] = begin + (chance.uniform(2, 40) if at % 2 else 1.5)
        if free[gpu] >= 1e6:
            return lines
        times = f'"ts": {SECOND}{begin:010.3f}, "dur": {free[gpu] - begin:.3f}'
        number = f"{SECOND}{at:06}"
        lines.append(f'{{"ph": "X", {_row(at, number, gpu, chance)}, "pid": {gpu}, "tid": 7, {times}}},\n')


def _row(at: int, number: str, gpu: int, chance: random.Random) -> str:
    """Category, name and arguments of a span."""
    if at % 2 == 0:
        args = (
            f'"External id": {number}, "device": {gpu}, "stream": 7, "correlation": {number}, "bytes": 4096'
        )
        return f'"cat": "gpu_memset", "name": "Memset (Device)", "args": {{{args}}}'
    args = (
        f'{{"External id": {number}, "queued": 0, "device": {gpu}, "context": 1, "stream": 7, '
        f'"correlation": {number}, '
        '"registers per thread": 32, "shared memory": 0, "blocks per SM": 6.2, "warps per SM": 24.9, '
        '"grid": [820, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 39}'
    )
    return f'"cat": "kernel", "name": "{NAMES[min(int(chance.expovariate(1.2)), 3)]}", "args": {args}'


def audited(path: Path, *, is_plain: bool) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of an audit of ``path``, in a process of its own."""
    hidden = "import sys; sys.modules['msgspec'] = None; " if is_plain else ""
    words = ["audit", str(path), "--json", "-o", f"{path}.html"]
    program = f"{hidden}from evenload.cli import main; main({words!r})"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    wall_s = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "spans": found["n_spans"],
        "mb": path.stat().st_size / 1e6,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "peak_gb": after.ru_maxrss * 1024 / 1e9,
        "report_mb": Path(f"{path}.html").stat().st_size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--plain", action="store_true", help="without msgspec")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, options.spans)
        found = audited(path, is_plain=options.plain)
    record("audit", [{"msgspec": "no" if options.plain else "yes", **found}])


if __name__ == "__main__":
    main()
