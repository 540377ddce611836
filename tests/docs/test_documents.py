"""Every code block of the README and the docs runs, in order, and prints what the page says it prints.

A page's blocks share one folder, its Python blocks one program. A ``text`` block right after a ``python``
or ``sh`` block is its output; ``...`` in it stands for anything. Where ``<!-- like: PATTERN -->`` stands
between them, the output is an example of PATTERN. A ``yaml`` block that begins with
``# name.yaml`` is written to that file. A block behind ``<!-- not run: reason -->`` is left out.

Programs and commands are forked (``forked_programs``); tests/cli starts commands as users do.
"""

import contextlib
import doctest
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from forked_programs import Programs

from evenload.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\s*\n)?^```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```\s*$",
    re.MULTILINE | re.DOTALL,
)
LIKE = re.compile(r"\s*<!-- like:(?P<pattern>.*?)-->\s*", re.DOTALL)
MARK = "=== end of block {} ==="


@dataclass(frozen=True)
class Block:
    language: str
    body: str
    line: int
    output: str | None
    example: str | None = None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    blocks = []
    for at, match in enumerate(found):
        if match["skip"] or match["language"] not in ("python", "sh", "yaml"):
            continue
        after = found[at + 1] if at + 1 < len(found) else None
        name = re.match(r"# (\S+\.ya?ml)\n", match["body"]) if match["language"] == "yaml" else None
        if match["language"] == "yaml" and not name:
            continue
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(match["language"], match["body"], line, *output_of(text, match, after)))
    return blocks


def output_of(text: str, block: re.Match, after: re.Match | None) -> tuple[str | None, str | None]:
    """What a block has to print: the ``text`` block right after it, or what that is an example of."""
    if after is None or after["language"] != "text":
        return None, None
    between = text[block.end() : after.start()]
    if like := LIKE.fullmatch(between):
        return like["pattern"].strip() + "\n", after["body"]
    return (None if between.strip() else after["body"]), None


RUNNABLE = [page for page in PAGES if any(b.language in ("python", "sh") for b in blocks_of(page))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs(page: Path, folder: Path, all_programs: tuple[Programs, Programs]) -> None:
    blocks = blocks_of(page)
    imports = slow_imports(blocks)
    programs = all_programs[bool(imports)]
    programs.load(*IMPORTS, *imports)
    for block in blocks:
        if block.language == "yaml":
            name = block.body.splitlines()[0][2:].strip()
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block.body)
    run_in_order([b for b in blocks if b.language != "yaml"], page, folder, programs)


def test_what_is_loaded_beforehand_is_there() -> None:
    ours = [ROOT / "src" / name.replace(".", "/") for name in IMPORTS if name.startswith("evenload")]
    assert [path for path in ours if not path.is_dir() and not path.with_suffix(".py").is_file()] == []


def run_in_order(blocks: list[Block], page: Path, folder: Path, programs: Programs) -> None:
    """Shell blocks run one by one; all Python blocks are one program, which waits while shell blocks run."""
    after_shell = {b.line for a, b in pairwise(blocks) if a.language == "sh"}
    python = [b for b in blocks if b.language == "python"]
    with Script(python, after_shell, page, folder, programs) as script:
        for block in blocks:
            if block.language == "sh":
                printed = run_shell(block, page, folder, programs.environment)
            else:
                printed = script.run(block)
            compare(block, printed, page)


IMPORTS = (
    *("evenload.cli." + home.partition(":")[0] for home in COMMANDS.values()),
    *(f"evenload.devices.probes.{name}" for name in ("cpu", "cuda", "mps", "wgpu")),
    *("PIL.Image", "cloudpickle", "llvmlite.binding", "llvmlite.ir", "numpy.ma", "yaml"),
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "evenload.__main__",
    "evenload.audit.traces",
    "evenload.balance.flow.routing",
    "evenload.balance.sizes.fit",
    "evenload.cli.pipeline.plan_page",
    "evenload.devices.jobs",
    "evenload.executor.backends.process",
    "evenload.executor.finished_runs",
    "evenload.executor.mapping",
    "evenload.merkle.cpu_engine",
    "evenload.merkle.log.log",
    "evenload.merkle.tree",
    "evenload.pipeline.job.job_file",
    "evenload.pipeline.pipeline",
    "evenload.pipeline.planning.job_plan",
    *(f"evenload.pipeline.run.{name}" for name in ("ending.on_done", "ending.uploading", "session")),
    "evenload.pipeline.store.kept_results",
    "evenload.report.html",
    "evenload.report.progress",
    "evenload.report.trace",
    "evenload.zk.circuits.merkle",
    "evenload.zk.cpu.compiled_pairing",
    "evenload.zk.devsetup",
    "evenload.zk.prover",
)
"""What programs of several pages need."""

SLOW_IMPORTS = {
    r"(import|from) torch|evenload.clients|examples/(moe|matmul)": (
        *("torch", "torch._dynamo"),
        "evenload.clients.federation",
        "evenload.executor.gangs.ranks",
        "evenload.moe.routing.planner",
        "evenload.training.even_batches",
    ),
    r"from transformers": ("torch", "transformers.modeling_utils"),
    r"examples/edit-and-score/build|ImageEdit": (
        "torch",
        "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit",
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    ),
    r"from diffusers": ("diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",),
    r"from accelerate": ("accelerate", "torch.distributed.fsdp"),
    r"import datasets": ("datasets",),
    r"import dask": ("dask.array", "distributed"),
    r"import pandas": ("pandas",),
    r"from sentence_transformers": ("sentence_transformers",),
    r"from sklearn": ("sklearn.datasets", "sklearn.model_selection", "sklearn.svm"),
    r"import webdataset|to_tensorboard": ("torch.utils.data",),
}
"""What programs of a page and their workers need besides, by words in its blocks."""


def slow_imports(blocks: list[Block]) -> list[str]:
    text = "".join(block.body for block in blocks)
    return [one for words, names in SLOW_IMPORTS.items() if re.search(words, text) for one in names]


class Script:
    """A page's Python blocks, run as one program that waits for a line before those at ``pauses``."""

    def __init__(self, blocks: list[Block], pauses: set[int], page: Path, folder: Path, programs: Programs):
        self._page = page.relative_to(ROOT)
        self._pauses = pauses
        path = folder / f"{page.stem.replace('-', '_')}_blocks.py"
        path.write_text("\n".join(map(self._piece, blocks)))
        # Not a pipe, which would be full while we read the other.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the program
        their_in, our_in = os.pipe()
        our_out, their_out = os.pipe()
        self._stdin, self._stdout = open(our_in, "w"), open(our_out)  # noqa: SIM115  so these
        try:
            self._program = programs.start(path, their_in, their_out, self._errors.fileno())
        finally:
            os.close(their_in)
            os.close(their_out)

    def _piece(self, block: Block) -> str:
        wait = "input()\n" if block.line in self._pauses else ""
        return f"{wait}{block.body}\nprint({MARK.format(block.line)!r}, flush=True)\n"

    def __enter__(self) -> "Script":
        return self

    def run(self, block: Block) -> str:
        """Let the program go on to the end of ``block``, and return what it prints there."""
        if block.line in self._pauses:
            with contextlib.suppress(BrokenPipeError):  # it has ended; why is seen below
                self._stdin.write("\n")
                self._stdin.flush()
        printed = []
        for line in self._stdout:
            if line == MARK.format(block.line) + "\n":
                return "".join(printed)
            printed.append(line)
        self._program.wait(timeout=1100)
        self._errors.seek(0)
        raise AssertionError(f"{self._page}:{block.line} failed\n{''.join(printed)}\n{self._errors.read()}")

    def __exit__(self, kind: object, *_: object) -> None:
        with self._errors, self._stdout:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            if kind is not None:
                self._program.kill()
            self._stdout.read()
            exit_code = self._program.wait(timeout=1100)
            self._errors.seek(0)
            assert kind or exit_code == 0, f"{self._page}: its script fails\n{self._errors.read()}"


def run_shell(block: Block, page: Path, folder: Path, variables: dict[str, str]) -> str:
    lines = [line.removeprefix("$ ") for line in block.body.splitlines()]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    where = f"{page.relative_to(ROOT)}:{block.line}"
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compare(block: Block, printed: str, page: Path) -> None:
    if block.output is None:
        return
    for found in (printed, block.example) if block.example is not None else (printed,):
        where = f"{page.relative_to(ROOT)}:{block.line} {'prints' if found is printed else 'has the example'}"
        assert is_like(block.output, found), f"{where}\n{found}\ninstead of\n{block.output}"


def is_like(pattern: str, printed: str) -> bool:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(pattern, printed, options)
