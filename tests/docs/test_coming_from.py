"""Every call that a page "Coming from ..." shows in its table exists, there and here, with those arguments.

A table's cells hold code between backticks: calls, names, keyword arguments, command lines. Names that stand
for the reader's own objects (``pool``, ``even``) are listed with what they are instances of. What can be no
call of Python is listed, too, so that a cell which is neither fails.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenload.errors import MissingExtra

PAGES = Path(__file__).resolve().parents[2] / "docs" / "coming-from"
FLOWER = "evenload.clients.algorithms"
# What a name in a table stands for.
HERE = {
    "evenload": "evenload", "concurrent": "concurrent", "joblib": "joblib", "list": "builtins.list",
    "executor": "evenload.Executor", "future": "concurrent.futures.Future", "Ray": "evenload.executor.Ray",
    "EvenBatches": "evenload.training.EvenBatches", "even": "evenload.training.EvenBatches",
    "EvenTrainerMixin": "evenload.training.EvenTrainerMixin",
    "DataLoader": "torch.utils.data.DataLoader", "accelerator": "accelerate.Accelerator",
    "planner": "evenload.moe.Planner", "schedule_transfers": "evenload.moe.schedule_transfers",
    "clone_experts": "evenload.moe.clone_experts", "federate": "evenload.clients.federate",
    "Recipe": "evenload.clients.Recipe", "Cohort": "evenload.clients.Cohort",
    "PrivateFedAvg": f"{FLOWER}.PrivateFedAvg", "Median": f"{FLOWER}.Median",
    "TrimmedMean": f"{FLOWER}.TrimmedMean",
    **{name: f"evenload.clients.partition.{name}" for name in ("iid", "dirichlet", "shards", "by_key")},
    "images": "dask.array.Array", "device": "evenload.devices.CurrentDevice",
    "simple_evaluate": "lm_eval.simple_evaluate",
}  # fmt: skip
THERE = {
    "multiprocessing": {
        "Pool": "multiprocessing.pool.Pool", "pool": "multiprocessing.pool.Pool",
        "ProcessPoolExecutor": "concurrent.futures.ProcessPoolExecutor", "Parallel": "joblib.Parallel",
        "delayed": "joblib.delayed", "Memory": "joblib.Memory", "multiprocessing": "multiprocessing",
    },
    "ray": {
        "ray": "ray", "ActorPool": "ray.util.ActorPool", "ObjectRef": "ray.ObjectRef",
        "ds": "ray.data.Dataset", "ActorPoolStrategy": "ray.data.ActorPoolStrategy",
    },
    "dask": {
        "LocalCluster": "distributed.LocalCluster", "Client": "distributed.Client",
        "client": "distributed.Client", "distributed": "distributed", "dask": "dask", "da": "dask.array",
    },
    "accelerate": {
        "DistributedSampler": "torch.utils.data.DistributedSampler",
        "sampler": "torch.utils.data.DistributedSampler", "DataLoader": "torch.utils.data.DataLoader",
        "accelerator": "accelerate.Accelerator", "Accelerator": "accelerate.Accelerator",
        "DataLoaderConfiguration": "accelerate.utils.DataLoaderConfiguration", "loss": "torch.Tensor",
        "model": "torch.nn.parallel.DistributedDataParallel", "SyncBatchNorm": "torch.nn.SyncBatchNorm",
        "Trainer": "transformers.Trainer",
    },
    "split-between-processes": {
        "PartialState": "accelerate.PartialState", "Accelerator": "accelerate.Accelerator",
        "state": "accelerate.Accelerator", "gather_object": "accelerate.utils.gather_object",
    },
    "sentence-transformers": {
        "model": "sentence_transformers.sentence_transformer.model.SentenceTransformer"
    },
    "transformers-pipeline": {
        "pipeline": "transformers.pipeline", "pipe": "transformers.Pipeline.__call__",
        "KeyDataset": "transformers.pipelines.base.KeyDataset",
    },
    "diffusers": {
        "pipe": "diffusers.StableDiffusionPipeline.__call__", "state": "accelerate.Accelerator",
        "DiffusionPipeline": "diffusers.DiffusionPipeline",
    },
    "lm-eval": {"simple_evaluate": "lm_eval.simple_evaluate", "HFLM": "lm_eval.models.huggingface.HFLM"},
    "webdataset": {"wds": "webdataset", "dataset": "webdataset.WebDataset"},
}  # fmt: skip
# Of whom a keyword alone is an argument.
KEYWORDS = {"flower": "evenload.clients.federate"}
PROGRAMS = ("evenload", "torchrun", "accelerate", "snarkjs", "ray", "flwr", "lm_eval", "python")
NO_CALLS = {"CUDA_VISIBLE_DEVICES", "f", "class A", "Model", "Answer", 'if __name__ == "__main__":'}
OWN = ("f", "strategy", "app", "Everywhere")  # the reader's own functions and classes
# Arguments of decorators that take any: Ray checks them when it runs.
OPTIONS = re.compile(r"(max_retries|max_restarts|retry_exceptions|num_gpus|runtime_env)=.*")


def rows(page: str) -> Iterator[tuple[str, str]]:
    """The rows of a page's table "There and here", as pairs of cells."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    table = text.split("## There and here\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) > 6, page
    for line in lines[2:]:
        there, here = line.strip("|").split(" | ")
        yield there, here


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def named(dotted: str) -> Any:
    """What a dotted name is: of a module, or an attribute of what is in one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if error.name and not ".".join(parts[:cut]).startswith(error.name):
                raise
            continue
        return functools.reduce(getattr, parts[cut:], found)
    raise AssertionError(f"there is no {dotted}")


def check(text: str, names: dict[str, str], keywords_of: str) -> None:
    """Every call in ``text`` resolves and takes the keywords that it is given."""
    if re.match(r"\w+=", text):
        text = f"{keywords_of}({re.sub(r'=$', '=None', text)})"
    tree = ast.parse(text.removeprefix("@"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        target = resolve(call.func, names)
        if target is not None:
            takes(target, call, text)
    [statement] = tree.body
    assert isinstance(statement, ast.Expr), text
    if not calls and not isinstance(statement.value, ast.Constant):
        assert resolve(statement.value, names) is not None, text


def resolve(node: ast.expr, names: dict[str, str]) -> Any:
    """What is called; None for methods of what a call returned, and of the reader's own functions."""
    dotted = ast.unparse(node)
    if not re.fullmatch(r"[\w.]+", dotted) or dotted.split(".")[0] in OWN:
        return None
    first, *rest = dotted.split(".")
    assert first in names, f"{dotted}: say in this test what {first} stands for"
    return named(".".join([names[first], *rest]))


def takes(target: Any, call: ast.Call, text: str) -> None:
    parameters = inspect.signature(target).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    known = {one.name for one in parameters}
    given = {keyword.arg for keyword in call.keywords}
    assert given <= known, f"{text}: no argument {given - known}"


def pages() -> list[str]:
    return sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "index")


@pytest.mark.parametrize("page", pages())
def test_what_stands_here_exists(page: str) -> None:
    if page == "lm-eval":  # its own function is called here, too
        pytest.importorskip("lm_eval", reason="lm-eval is not installed; use make test-lm-eval")
    for _, here in rows(page):
        for text in code(here):
            if text not in NO_CALLS and not text.startswith("evenload "):  # see test_commands.py
                with contextlib.suppress(MissingExtra):  # Flower's apps need Flower
                    check(text, HERE, KEYWORDS.get(page, "evenload.Executor.map"))


def test_the_same_names_are_the_same() -> None:
    checked = 0
    for there, here in rows("flower"):
        if here.startswith("the same names in "):
            [home] = code(here)
            for name in code(there):
                assert named(f"{home}.{name}")
                checked += 1
    assert checked > 5


@pytest.mark.parametrize("page", sorted(THERE))
def test_what_stands_there_exists(page: str) -> None:
    for library in {home.split(".")[0] for home in THERE[page].values()}:
        pytest.importorskip(library)
    for there, _ in rows(page):
        for text in code(there):
            if text.split()[0] not in PROGRAMS and text not in NO_CALLS and not OPTIONS.fullmatch(text):
                check(text, THERE[page], "")


def test_names_that_do_not_exist_are_found() -> None:
    for text in ("evenload.mapp(f, items)", "executor.map(f, items, retry=3)", "unknown(3)", "retry=3"):
        with pytest.raises((AssertionError, AttributeError)):
            check(text, HERE, "evenload.Executor.map")


def test_every_page_is_in_the_index() -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert [page for page in pages() if f"]({page}.md)" not in index] == []
