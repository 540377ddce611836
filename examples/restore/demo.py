"""The whole example: write the noised pictures, run the job, say how much better they are and where to look.

    python examples/restore/demo.py [options of evenload run]

``make demo`` runs this. It needs scikit-image for the pictures, and the extras ``jobs`` and ``torch``.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUN = HERE / "runs" / "restore"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Other options are those of: evenload run",
    )
    _, options = parser.parse_known_args()
    began = time.monotonic()
    sys.path.insert(0, str(HERE))
    from pictures import write

    n_pictures = write(HERE / "pictures")
    print(f"{n_pictures} noised pictures in {HERE / 'pictures'}", flush=True)
    command = [
        sys.executable,
        "-m",
        "evenload",
        "run",
        str(HERE / "job.yaml"),
        "--out",
        str(RUN),
        "--fresh",
    ]
    code = subprocess.run([*command, *options], stdout=subprocess.DEVNULL).returncode
    if code not in (0, 1):
        return code
    print(text_of(json.loads((RUN / "summary.json").read_text()), time.monotonic() - began))
    return code


def text_of(summary: dict, seconds: float) -> str:
    """The run's figures, as measured, for a person."""
    figures = summary["headline"]
    devices = ", ".join(device["device"] for device in summary["devices"])
    lines = [f"{summary['n_done']} of {summary['total']} pictures restored and scored on {devices}"]
    levels = [
        name.removeprefix("psnr_gain_db_at_") for name in figures if name.startswith("psnr_gain_db_at_")
    ]
    for level in levels:
        before, after = figures[f"psnr_before_db_at_{level}"], figures[f"psnr_db_at_{level}"]
        gain = figures[f"psnr_gain_db_at_{level}"]
        lines.append(f"  noise {level:<5} PSNR {before:5.2f} → {after:5.2f} dB   gain {gain:5.2f} dB")
    lines.append(f"  rank correlation of score and true noise: {figures['score_rank_correlation']}")
    lines.append(f"  mean score: {figures['score_before']} → {figures['score_after']}")
    if summary["ratio"] is not None:
        work_s, bound_s = summary["work_s"], summary["bound_s"]
        lines.append(
            f"  the work took {work_s:.1f} s: {summary['ratio']:.2f}× of the best possible, {bound_s:.1f} s"
        )
    lines.append(f"  {seconds:.0f} s with everything")
    lines.append(f"report: {RUN / 'report.html'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
