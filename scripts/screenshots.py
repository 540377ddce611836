"""Pictures of reports and of the live page for the README and the docs, by a headless Chromium.

    python examples/restore/pictures.py && evenload run examples/restore/job.yaml --devices cpu*2
    python examples/edit-and-score/build.py && evenload run examples/edit-and-score/job.yaml
    cd examples
    python ../scripts/screenshots.py restore/runs/restore edit-and-score/runs/edit-and-score

The first run is shown as a report in both themes and as the live page; of every run there is where its time
went. live_picture.py makes the animation of the README.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from evenload.audit.audit import AuditParts, audit_of
from evenload.audit.page import write_audit
from evenload.audit.traces import read_traces
from evenload.report.html import write_report

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the live page of ``folder``, in a process of its own."""
    command = [sys.executable, "-m", "evenload", "dash", str(folder), "--until-eof", "--port", "0"]
    page = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield page.stdout.readline().strip()
    finally:
        page.stdin.close()
        page.wait(20)


class Camera:
    """Takes pictures of pages with Debian's Chromium."""

    def __init__(self, playwright: Any):
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        if chromium is None:
            sys.exit("no chromium on this machine")
        self._browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

    def page(self, width: int, height: int, *, dark: bool = False) -> Any:
        """A new, empty page."""
        size = {"width": width, "height": height}
        return self._browser.new_page(viewport=size, color_scheme="dark" if dark else "light")

    def shoot(
        self, url: str, out: Path, width: int, *, dark: bool = False, height: int | None = None
    ) -> None:
        """The whole page, or its first ``height`` pixels."""
        page = self.page(width, height or 900, dark=dark)
        page.goto(url)
        page.wait_for_selector("h1")
        page.wait_for_timeout(2500 if url.startswith("http") else 600)
        page.screenshot(path=out, full_page=height is None)
        page.close()
        print(f"  {out}")


def shoot_docs(camera: Camera, run: Path, others: list[Path]) -> None:
    """A report down to its timeline in both themes, the live page, and where the time of each run went."""
    out = ROOT / "docs" / "pictures"
    out.mkdir(exist_ok=True)
    for one in (run, *others):
        with tempfile.TemporaryDirectory() as folder:
            write_report(one, page := Path(folder) / "report.html")
            camera.shoot(page.as_uri(), out / f"factors-{one.name}.png", 1120, height=1440)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(run, page)
        camera.shoot(page.as_uri(), out / "report.png", 1120, height=1160)
        camera.shoot(page.as_uri(), out / "report-dark.png", 1120, height=1160, dark=True)
    with served(run) as url:
        camera.shoot(url, out / "page.png", 1120, height=760)
    shoot_audit(camera)


def shoot_audit(camera: Camera) -> None:
    """The first screen of the audit that docs/how-to/audit.md tells of."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "audit.html"
        parts = AuditParts(read_traces([ROOT / "examples" / "audit" / "ray-timeline.gz"]))
        write_audit(parts, audit_of(parts), page)
        camera.shoot(page.as_uri(), ROOT / "docs" / "pictures" / "audit.png", 1120, height=820)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        shoot_docs(Camera(playwright), given.runs[0], given.runs[1:])


if __name__ == "__main__":
    main()
