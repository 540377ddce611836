"""The animation of the README: the live page while the restore example really runs, by a headless Chromium.

    python scripts/live_picture.py [OUT]        # docs/pictures/live.webp

It runs examples/restore on two CPU slots, photographs the page twice a second, and keeps those that differ.
"""

import argparse
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from screenshots import ROOT, Camera, served

EXAMPLE = ROOT / "examples" / "restore"
WIDTH, HEIGHT, SHOWN = 1000, 620, 800  # of the page, and the width of the pictures
EVERY_S, FRAME_MS, LAST_MS, MOST = 0.5, 350, 3000, 60


def photographs(page: Any, job: subprocess.Popen) -> list[Image.Image]:
    """Pictures of the page until the job has ended, and one after."""
    found: list[Image.Image] = []
    while len(found) < MOST:
        has_ended = job.poll() is not None
        if has_ended:
            page.wait_for_timeout(1500)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture = picture.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
        if not found or picture.tobytes() != found[-1].tobytes():
            found.append(picture)
        if has_ended:
            break
        page.wait_for_timeout(1000 * EVERY_S)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs" / "pictures" / "live.webp")
    out = parser.parse_args().out
    subprocess.run([sys.executable, str(EXAMPLE / "pictures.py")], check=True)
    with tempfile.TemporaryDirectory() as text, sync_playwright() as playwright:
        run = Path(text) / "restore"
        command = [sys.executable, "-m", "evenload", "run", str(EXAMPLE / "job.yaml"), "--devices", "cpu*2"]
        job = subprocess.Popen([*command, "--out", str(run), "--no-progress"], stdout=subprocess.DEVNULL)
        while not (run / "events.jsonl").exists() and job.poll() is None:
            time.sleep(0.05)
        with served(run) as url:
            page = Camera(playwright).page(WIDTH, HEIGHT)
            page.goto(url)
            page.wait_for_selector("h1")
            pictures = photographs(page, job)
        job.wait()
    times = [FRAME_MS] * (len(pictures) - 1) + [LAST_MS]
    pictures[0].save(
        out, save_all=True, append_images=pictures[1:], duration=times, loop=0, quality=60, method=6
    )
    print(f"{out}: {len(pictures)} pictures, {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
