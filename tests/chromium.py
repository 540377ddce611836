"""Debian's Chromium, started without what it does for a person at a screen."""

import shutil
import subprocess
from html.parser import HTMLParser
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


class Shown(HTMLParser):
    """What a page shows: ``seen`` texts outside of scripts and styles, and ``tags`` with their attributes."""

    def __init__(self, dom):
        super().__init__()
        self.seen, self.tags, self._skips = [], [], 0
        self.feed(dom)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._skips += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skips -= tag in ("script", "style")

    def handle_data(self, content):
        if not self._skips:
            self.seen.append(content)
