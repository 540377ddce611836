"""Make sample reports and look at them: pictures by a headless Chromium, light, dark and narrow.

python scripts/screenshots.py OUT [RUN ...]     # RUN: run folders to show as well
"""

import importlib.util
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from evenload.events import EventFile
from evenload.report.html import write_report

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"wide": (1280, 4400), "narrow": (390, 4200)}


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


def shoot(page: Path, out: Path, size: tuple[int, int], dark: bool) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium on this machine")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags += [
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            "--virtual-time-budget=4000",
        ]
        flags += ["--hide-scrollbars", f"--screenshot={out}"]
        if dark:
            flags += ["--blink-settings=preferredColorScheme=0"]
        subprocess.run(
            [chromium, *flags, page.resolve().as_uri()], check=True, capture_output=True, timeout=120
        )


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for run in [*make_runs(Path(folder)), *map(Path, sys.argv[2:])]:
            page = out / f"{run.name}.html"
            write_report(run, page)
            print(f"{page}  {page.stat().st_size:,} bytes")
            for name, size in SIZES.items():
                for dark in (False, True) if name == "wide" else (False,):
                    picture = out / f"{run.name}-{name}{'-dark' if dark else ''}.png"
                    shoot(page, picture, size, dark)
                    print(f"  {picture}")


if __name__ == "__main__":
    main()
