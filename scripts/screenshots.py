"""Pictures of the pages, by a headless Chromium: reports and live pages, light, dark and narrow.

python scripts/screenshots.py OUT [RUN ...]        # sample runs, and RUN: run folders to show as well
python scripts/screenshots.py --docs RUN [RUN ...] # the pictures of the README and the docs, of real runs

live_picture.py makes the animation of the README. The pictures in docs/pictures are of the restore
example, and of the factors of both examples:

    python examples/restore/pictures.py && evenload run examples/restore/job.yaml --devices cpu*2
    python examples/edit-and-score/build.py && evenload run examples/edit-and-score/job.yaml
    cd examples
    python ../scripts/screenshots.py --docs restore/runs/restore edit-and-score/runs/edit-and-score
"""

import argparse
import importlib.util
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from evenload.audit.audit import AuditParts, audit_of
from evenload.audit.page import write_audit
from evenload.audit.traces import read_traces
from evenload.events import EventFile
from evenload.report.html import write_comparison, write_report

ROOT = Path(__file__).resolve().parent.parent
SIZES = {1280: "wide", 390: "narrow"}


def sample_run_class():
    spec = importlib.util.spec_from_file_location("samples", ROOT / "tests" / "report" / "conftest.py")
    samples = importlib.util.module_from_spec(spec)
    sys.modules["samples"] = samples
    spec.loader.exec_module(samples)
    return samples.SampleRun


def pictures(folder: Path, n: int):
    """Noisy and clean pictures of soft shapes, and the outputs that name them."""
    from PIL import Image, ImageDraw, ImageFilter

    chance = random.Random(7)
    for index in range(n):
        clean = Image.new("RGB", (320, 240), tuple(chance.randrange(40, 200) for _ in range(3)))
        pen = ImageDraw.Draw(clean)
        for _ in range(14):
            x, y, r = chance.randrange(320), chance.randrange(240), chance.randrange(14, 70)
            pen.ellipse((x - r, y - r, x + r, y + r), fill=tuple(chance.randrange(256) for _ in range(3)))
        clean = clean.filter(ImageFilter.GaussianBlur(1.2))
        noise = Image.effect_noise((320, 240), 60).convert("RGB")
        for name, picture in (("inputs", Image.blend(clean, noise, 0.35)), ("outputs/restore", clean)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            picture.save(folder / name / f"{index:03d}.png")

    def outputs(index: int, stage: str) -> dict:
        if stage == "restore":
            paths = {"before": f"inputs/{index:03d}.png", "restored": f"outputs/restore/{index:03d}.png"}
            return {**paths, "psnr_gain_db": round(random.Random(index).uniform(2.0, 7.0), 3)}
        return {"score": round(random.Random(-index - 1).uniform(0.2, 0.95), 4)}

    return outputs


def make_runs(folder: Path) -> list[Path]:
    make = sample_run_class()
    twelve = {f"cuda:{i}": 6.0 + i % 3 for i in range(8)} | {f"cpu:{i}": 1.0 for i in range(4)}
    runs = {}
    for name, options in {
        "done": {},
        "failed": {"fails": (3, 11, 17), "loses": (6,), "moves": 4},
        "large": {
            "n_items": 60_000,
            "speeds": twelve,
            "stages": {"encode": 0.02, "score": 0.01},
            "jitter": 0.6,
            "gap_s": 1e-4,
            "samples": False,
        },
        "plain": {"stages": {"map": 0.8}, "n_items": 200, "chunk": 4, "samples": False, "is_cut": True},
    }.items():
        runs[name] = folder / name
        runs[name].mkdir()
        if name in ("done", "failed"):
            options["outputs"] = pictures(runs[name], 24)
            (runs[name] / "config.yaml").write_text(
                "name: restore sample pictures\nstages:\n  - name: restore\n"
            )
        with EventFile(runs[name] / "events.jsonl") as sink:
            for event in make(**options):
                sink(event)
    return list(runs.values())


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


def play(folder: Path, seconds: float) -> subprocess.Popen:
    """Write a sample run into ``folder`` as it happens, for a live page to show."""
    program = (
        "import sys, time, dataclasses\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from screenshots import sample_run_class, EventFile, Path\n"
        "make, began = sample_run_class(), time.time()\n"
        "with EventFile(Path(sys.argv[2]) / 'events.jsonl') as sink:\n"
        "    for event in make(n_items=400, fails=(3, 41), loses=(6,), moves=9):\n"
        "        t = getattr(event, 'stop_s', None) or getattr(event, 't', 0.0)\n"
        "        late = began + t - float(sys.argv[3]) - time.time()\n"
        "        time.sleep(max(0.0, late))\n"
        "        sink(event)\n"
    )
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", program, str(ROOT / "scripts"), str(folder), str(seconds)])


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

    def everything(self, url: str, name: str, out: Path) -> None:
        for width, kind in SIZES.items():
            for dark in (False, True) if kind == "wide" else (False,):
                self.shoot(url, out / f"{name}-{kind}{'-dark' if dark else ''}.png", width, dark=dark)


def shoot_all(camera: Camera, out: Path, runs: list[Path]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        made = make_runs(folder)
        for run in [*made, *runs]:
            page = out / f"{run.name}.html"
            write_report(run, page)
            print(f"{page}  {page.stat().st_size:,} bytes")
            camera.everything(page.resolve().as_uri(), run.name, out)
        write_comparison(made[:2], out / "compare.html")
        camera.everything((out / "compare.html").resolve().as_uri(), "compare", out)
        for run in made[:2]:
            with served(run) as url:
                camera.everything(url, f"page-{run.name}", out)
        player = play(folder / "live", 20.0)
        try:
            with served(folder / "live") as url:
                time.sleep(3)
                camera.everything(url, "page-live", out)
        finally:
            player.kill()
            player.wait()


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
    parser.add_argument("--docs", action="store_true", help="the pictures of the README and the docs")
    parser.add_argument("first", type=Path, metavar="OUT|RUN", help="a folder for them, with --docs a run's")
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="folders of more runs")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        camera = Camera(playwright)
        (shoot_docs if given.docs else shoot_all)(camera, given.first, given.runs)


if __name__ == "__main__":
    main()
