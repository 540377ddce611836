"""The engine for a device: the processor's vector kernels, a GPU's WGSL kernels, else plain Python."""

from evenload._optional import is_installed
from evenload.merkle.plain_engine import HashEngine, PlainEngine
from evenload.merkle.scheme import Scheme


def make_engine(
    scheme: Scheme, *, threads: int | None = 1, family: str = "cpu", adapter: str | None = None
) -> HashEngine:
    """The engine of a device: ``family`` "wgpu" hashes on the adapter of that uuid, all others on the CPU.

    threads  for the CPU; None for as many as this process's device has
    Without llvmlite (extra: kernels) the CPU runs plain Python, some ten times slower.
    Raises MissingExtra or NoUsableDevice for a wgpu device that cannot be used.
    """
    if family == "wgpu":
        from evenload.merkle.wgsl_engine import WgslEngine

        return WgslEngine(scheme, adapter)
    if not is_installed("llvmlite"):
        return PlainEngine(scheme)
    from evenload.merkle.cpu_engine import CpuEngine

    if threads is None:
        from evenload.devices import current

        threads = current().threads
    return CpuEngine(scheme, threads)
