"""The drawn pictures of the docs, SVG in the reports' colours: ``docs/pictures/NAME[-dark].svg``.

    python scripts/docs_pictures.py [--check]     # --check: 1 if a committed one is not what is drawn

Nothing here is drawn by hand: a routing and a plan are computed, two runs are simulated, a round was measured
(benchmarks/results). The same program draws the same picture on every machine.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures"
WIDTH, RIGHT = 600, 70
FONT = "Inter, ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LOOKS = {
    "": {"ink": "#17191d", "soft": "#575c64", "rule": "#c9c9c1", "others": "#9aa0a8", "idle": "#e8e8e2",
         "0": "#0072b2", "1": "#e69f00", "2": "#009e73", "3": "#b8608f"},
    "-dark": {"ink": "#edece8", "soft": "#a7abb2", "rule": "#434850", "others": "#6b727c", "idle": "#24282d",
              "0": "#3d9bd6", "1": "#e8ab2e", "2": "#22b48a", "3": "#d68bb3"},
}  # fmt: skip


class Drawing:
    """A picture as a list of shapes, whose colours are names until it is written in one look.

    left  pixels for the names of bars and lanes
    """

    def __init__(self, title: str, left: float = 90):
        self.title, self.left, self.y = title, left, 4.0
        self.shapes: list[str] = []

    def text(self, x: float, said: str, *, colour: str = "ink", bold: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.1f}" y="{self.y + 14:.1f}"'
        self.shapes.append(f'<text {place} fill="{{{colour}}}"{weight}>{escape(said)}</text>')

    def box(self, x: float, width: float, colour: str, height: float = 14) -> None:
        place = f'x="{x:.1f}" y="{self.y + 3:.1f}" width="{max(width, 0.6):.1f}" height="{height}"'
        self.shapes.append(f'<rect {place} rx="2" fill="{{{colour}}}"/>')

    def line(self, x: float, top: float) -> None:
        """A dashed line from ``top`` down to here."""
        place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{self.y:.1f}"'
        self.shapes.append(f'<line {place} stroke="{{ink}}" stroke-dasharray="3 3"/>')

    def head(self, said: str) -> None:
        self.text(0, said, bold=True)
        self.y += 24

    def bars(self, bars: Iterable[tuple[str, float, str, str]], most: float) -> None:
        """A bar for each ``(name, value, said, colour)``."""
        for name, value, said, colour in bars:
            self.text(0, name, colour="soft")
            width = (WIDTH - self.left - RIGHT) * value / most
            self.box(self.left, width, colour)
            self.text(self.left + width + 6, said)
            self.y += 20

    def lanes(self, lanes: dict[str, list[tuple[float, float, str]]], end: float) -> None:
        """A row for each device, with its ``(start, stop, colour)``."""
        scale = (WIDTH - self.left - 10) / end
        for name, parts in lanes.items():
            self.text(0, name, colour="soft")
            self.box(self.left, end * scale, "idle")
            for start, stop, colour in parts:
                self.box(self.left + start * scale, (stop - start) * scale - 0.5, colour)
            self.y += 20

    def legend(self, names: Iterable[tuple[str, str]]) -> None:
        x = 0.0
        for name, colour in names:
            self.box(x, 12, colour, 12)
            self.text(x + 17, name, colour="soft")
            x += 34 + 7.2 * len(name)
        self.y += 24

    def written(self, look: dict[str, str]) -> str:
        body = "\n".join(self.shapes)
        for name, colour in look.items():
            body = body.replace(f"{{{name}}}", colour)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y + 4:.0f}" role="img" '
            f'font-family="{FONT}" font-size="13"><title>{escape(self.title)}</title>\n{body}\n</svg>\n'
        )


def routing() -> Drawing:
    """A batch over eight GPUs: each expert's tokens split equally over its copies, and routed."""
    from evenload.balance.flow import route
    from evenload.moe import rebalance_experts

    chance, n_gpus = random.Random(7), 8
    demands = [round(400 * chance.lognormvariate(0.0, 1.0)) for _ in range(64)]
    seen = [round(400 * chance.lognormvariate(0.0, 1.0) * 0.3 + 0.7 * demand) for demand in demands]
    placement = rebalance_experts([seen], 80, 1, 1, n_gpus)
    phy2log = [int(expert) for expert in placement[0][0]]
    copies = {expert: phy2log.count(expert) for expert in phy2log}
    loads = {
        "Split equally over copies": [
            sum(demands[expert] / copies[expert] for expert in phy2log[gpu * 10 : gpu * 10 + 10])
            for gpu in range(n_gpus)
        ],
        "Routed": [float(load) for load in route(phy2log, demands, n_gpus=n_gpus).loads[0]],
    }
    mean = sum(demands) / n_gpus
    most = max(max(one) for one in loads.values())
    drawing = Drawing("Tokens on each of eight GPUs before and after routing")
    for name, one in loads.items():
        drawing.head(f"{name}: the busiest GPU does {max(one) / mean:.2f} x the mean")
        top = drawing.y
        bars = [
            (f"GPU {gpu}", load, f"{load:,.0f}", "1" if load > 1.02 * mean else "0")
            for gpu, load in enumerate(one)
        ]
        drawing.bars(bars, most)
        drawing.line(drawing.left + (WIDTH - drawing.left - RIGHT) * mean / most, top)
        drawing.y += 10
    return drawing


def timeline() -> Drawing:
    """The same items on four unequal devices: dealt equally up front, and by evenload."""
    from evenload.balance.fleet import ModelDevice
    from evenload.balance.simulate import simulate

    chance = random.Random(3)
    costs = [chance.lognormvariate(0.0, 0.5) for _ in range(60)]
    devices = [ModelDevice(f"speed {speed}", float(speed), launch_s=0.01) for speed in (1, 2, 4, 8)]
    runs = {
        name: simulate(policy, devices, costs)
        for name, policy in (("Dealt equally up front", "static"), ("Dealt by evenload", "measured"))
    }
    end = max(run.makespan_s for run in runs.values())
    drawing = Drawing("Sixty items on four devices of speeds 1 : 2 : 4 : 8, dealt equally and by evenload")
    for name, run in runs.items():
        drawing.head(f"{name}: {run.makespan_s:.1f} s, {100 * run.ratio:.0f} % of the best possible")
        lanes: dict[str, list[tuple[float, float, str]]] = {device.name: [] for device in devices}
        for span in run.spans:
            n = len(span.indices)
            step = (span.stop_s - span.start_s) / n
            colour = "2" if span.duplicate else "0"
            lanes[span.device] += [
                (span.start_s + i * step, span.start_s + (i + 1) * step, colour) for i in range(n)
            ]
        top = drawing.y
        drawing.lanes(lanes, end)
        drawing.line(drawing.left + run.bound_s * (WIDTH - drawing.left - 10) / end, top)
        drawing.y += 10
    drawing.legend((("an item", "0"), ("a copy of one that is late elsewhere", "2"), ("idle", "idle")))
    return drawing


def rounds() -> Drawing:
    """Milliseconds of a round of 20 small models by strategy, as committed."""
    found = json.loads((ROOT / "benchmarks" / "results" / "clients_small.json").read_text(encoding="utf-8"))
    rows = [row for row in found["rows"] if (row["model"], row["clients"]) == ("64-32-10", 20)]
    most = max(row["clock, ms"] for row in rows)
    drawing = Drawing("Milliseconds of a round of 20 models, by strategy", left=190)
    drawing.head("A round of 20 models of 64-32-10, ms")
    bars = []
    for row in rows:
        colour = "0" if row["strategy"] == "auto" else "others"
        bars.append((row["strategy"], row["clock, ms"], f"{row['clock, ms']:.3g}", colour))
    drawing.bars(sorted(bars, key=lambda bar: -bar[1]), most)
    return drawing


def plan() -> Drawing:
    """What each GPU holds and does when, of the plan of the example job."""
    job = "examples/edit-and-score/real.yaml"
    command = [
        sys.executable,
        "-m",
        "evenload",
        "plan",
        job,
        "--items",
        "24",
        "--devices",
        "4x80GB:h100",
        "--json",
    ]
    made = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    stages = list(dict.fromkeys(one["stage"] for one in made["slices"]))
    lanes: dict[str, list[tuple[float, float, str]]] = {}
    for one in sorted(made["slices"], key=lambda one: (one["device"], one["start_s"])):
        colour = "others" if one["kind"] == "load" else str(stages.index(one["stage"]))
        lanes.setdefault(one["device"], []).append((one["start_s"], one["stop_s"], colour))
    drawing = Drawing("The plan of 24 edits with scores on four GPUs of 80 GB")
    drawing.head(
        f"24 items on 4 x h100: {made['makespan_s']:.0f} s, {made['ratio_to_bound']:.2f} x the bound"
    )
    drawing.lanes(lanes, made["makespan_s"])
    drawing.legend(
        [("loads a model", "others"), *((stage, str(i)) for i, stage in enumerate(stages)), ("idle", "idle")]
    )
    return drawing


PICTURES: dict[str, Callable[[], Drawing]] = {
    "routing": routing,
    "timeline": timeline,
    "rounds": rounds,
    "plan": plan,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a picture is another")
    given, stale = parser.parse_args(), []
    for name, draw in PICTURES.items():
        drawing = draw()
        for suffix, look in LOOKS.items():
            path, text = OUT / f"{name}{suffix}.svg", drawing.written(look)
            if given.check:
                if not path.is_file() or path.read_text(encoding="utf-8") != text:
                    stale.append(path.name)
            else:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(
            f"not what is drawn now: {', '.join(stale)}; run python scripts/docs_pictures.py", file=sys.stderr
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
