"""Pictures of the reports that parts wrote, by Chromium where it is; the pages are kept in any case."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpu_parts.bounded_process import run_bounded

MOST_REPORTS = 2
MOST_BYTES = 8_000_000  # of a report
LIMIT_S = 30.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1600"),
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",  # a process for each, as dear as the page
)


def keep_reports(written: Path, names: Iterable[str], out: Path) -> None:
    """Copy the reports of the first parts that wrote one, ``NAME.html``, into ``out``."""
    reports = [path for name in names if (path := written / f"{name}.html").is_file()]
    for path in reports[:MOST_REPORTS]:
        if path.stat().st_size <= MOST_BYTES:
            shutil.copyfile(path, out / path.name)


def take_pictures(out: Path) -> str:
    """Take a picture of each report in ``out``; says what was done, or why not."""
    reports = sorted(out.glob("*.html"))[:MOST_REPORTS]
    if not reports:
        return f"no report is in {out}, so there is nothing to take a picture of"
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        return (
            "no Chromium is here: reports are kept as pages, and --pictures FOLDER takes pictures elsewhere"
        )
    failed = [path.name for path in reports if not is_taken(chromium, path)]
    return (
        f"no picture could be taken of {', '.join(failed)}"
        if failed
        else f"pictures of {len(reports)} reports"
    )


def is_taken(chromium: str, report: Path) -> bool:
    """Take one report's picture, beside it. False if Chromium fails or does not end."""
    picture = report.with_suffix(".png")
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # several cannot share one
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", f"--screenshot={picture}"]
        run_bounded([*command, report.absolute().as_uri()], dict(os.environ), LIMIT_S, Path(os.devnull))
    return picture.is_file()
