"""Debian's Chromium, started without what it does for a person at a screen."""

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
UNUSED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup"),  # a process for each window, as dear as a page of ours
    # Those that Playwright turns off: of two such flags Chromium takes the last.
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades"),
    *("HttpsFirstBalancedModeAutoEnable", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning"),
    *("OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled", "PreconnectToSearch"),
)
FLAGS = ["--no-sandbox", "--disable-gpu", f"--disable-features={','.join(UNUSED)}"]
ALONE = [
    *("--headless", "--disable-quic", "--no-first-run", "--disable-sync", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=3000"),
    "--dump-dom",
]


def drawn(page: Path, profile: Path) -> str:
    """The HTML of a page when its scripts have done their work."""
    command = [str(CHROMIUM), *FLAGS, *ALONE, f"--user-data-dir={profile}", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=550).stdout
