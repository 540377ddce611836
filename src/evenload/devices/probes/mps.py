"""Apple's GPU through torch's MPS backend. Facts come from macOS itself: torch need not be imported."""

import platform
import re
import subprocess
import sys
from collections.abc import Callable

from evenload._optional import is_installed
from evenload.devices.device import Device
from evenload.devices.probe import ProbeReport


def ask(*command: str) -> str:
    """Return what ``command`` prints, stripped; "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def probe(
    system: str = sys.platform,
    machine: str | None = None,
    ask: Callable[..., str] = ask,
    has_torch: bool | None = None,
) -> ProbeReport:
    """Find the MPS device; arguments replace the system's for tests."""
    if system != "darwin" or (machine or platform.machine()) != "arm64":
        return ProbeReport("mps", status="absent", reason="not a Mac with Apple silicon")
    if not (is_installed("torch") if has_torch is None else has_torch):
        return ProbeReport(
            "mps",
            status="missing",
            reason="torch is not installed, and nothing else reaches MPS",
            hint="pip install 'evenload[torch]'",
        )
    cores = re.search(r'"gpu-core-count"\s*=\s*(\d+)', ask("ioreg", "-rd1", "-c", "AGXAccelerator"))
    memory = ask("sysctl", "-n", "hw.memsize")
    device = Device(
        id="mps:0",
        kind="integrated",
        backend="mps",
        name=ask("sysctl", "-n", "machdep.cpu.brand_string") or "Apple GPU",
        memory_bytes=int(memory) if memory.isdigit() else None,
        compute_units=int(cores[1]) if cores else None,
        driver=f"macOS {ask('sw_vers', '-productVersion')}".strip(),
    )
    return ProbeReport("mps", (device,), notes=("memory is shared with the CPU",))
