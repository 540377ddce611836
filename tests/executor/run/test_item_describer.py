"""Items are described when they are sent and when they are wanted; files by a thread, which may take long."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenload.balance.dealing.dealer import Dealer
from evenload.balance.sizes.size_learner import SizeLearner
from evenload.balance.sizes.size_model import SizeModel
from evenload.executor.decide.source import ListSource
from evenload.executor.run import item_describer as module
from evenload.executor.run.item_describer import ItemDescriber

FILE, TEXT = "the bytes of the file the item", "the length of the item"


def make(items: list[Any], *, may_thread: bool, limit: int = 800) -> tuple[Dealer, ItemDescriber, Any]:
    """A dealer that knows that long items take long, its describer, and a sink that says what waits."""
    dealer = Dealer("measured", ["a"], learner=SizeLearner(SizeModel({FILE: 1.0, TEXT: 1e-3}, 0.0, 0.1, 60)))
    dealer.add_range(0, len(items))
    dealer.close()
    sink: Any = SimpleNamespace(n_bytes=0)
    assert dealer.sizes is not None
    return dealer, ItemDescriber(dealer.sizes, ListSource(items), sink, 1, limit, may_thread=may_thread), sink


def files(folder: Path) -> list[Path]:
    paths = [folder / f"{n}.bin" for n in range(5)]
    for n, path in enumerate(paths):
        path.write_bytes(bytes(100 * n))
    return paths


def test_files_are_looked_at_by_a_thread_that_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    disk, features_of = threading.Event(), module.features_of

    def slow(item: Any, index: int, *, reads_files: bool) -> dict[str, float]:
        assert threading.current_thread().name == "evenload-features"
        assert disk.wait(100)
        return features_of(item, index, reads_files=reads_files)

    monkeypatch.setattr(module, "features_of", slow)
    dealer, describer, _ = make(files(tmp_path), may_thread=True)
    describer.refresh()
    describer.refresh()
    assert dealer.sizes is not None
    assert list(dealer.sizes.wanted()) == [0, 1, 2, 3, 4], "the disk hangs, and nothing waits for it"
    disk.set()

    def is_sized() -> bool:
        describer.refresh()
        return not dealer.sizes.wanted()

    until(is_sized, "the files are described")
    first = dealer.next("a", 0.0)
    dealer.done(first.chunk, 1.0, 1.0)
    assert next(iter(dealer.next("a", 1.0).indices)) == 4, "the largest"
    describer.close()
    until(
        lambda: not any(thread.name == "evenload-features" for thread in threading.enumerate()),
        "it has ended",
    )


def test_without_threads_files_are_looked_at_on_the_spot(tmp_path: Path) -> None:
    dealer, describer, _ = make(files(tmp_path), may_thread=False)
    describer.refresh()
    assert dealer.sizes is not None
    assert not dealer.sizes.wanted()


def test_results_that_fill_the_memory_put_items_back_into_their_order() -> None:
    dealer, describer, sink = make(["x" * n for n in range(1, 6)], may_thread=False)
    sizes = dealer.sizes
    assert sizes is not None
    describer.refresh()
    assert not sizes.wanted(), "all are sized"
    for n_bytes, is_ordered in ((199, False), (200, True), (150, True), (99, False)):
        sink.n_bytes = n_bytes
        describer.refresh()
        first = dealer._pool.backlog.first_unsized(9)
        assert first == ((0, 1, 2, 3, 4) if is_ordered else ())
