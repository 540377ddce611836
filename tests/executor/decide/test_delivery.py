"""Order is restored, whatever the order in which blocks come; only the block that is early waits."""

from hypothesis import given
from hypothesis import strategies as st

from evenload.executor.decide.delivery import Block, Delivery


def make(ordered: bool = True) -> Delivery:
    return Delivery(ordered, lambda: None, None)


@given(st.lists(st.integers(1, 4), max_size=20), st.randoms(use_true_random=False))
def test_input_order_from_any_order(lengths: list[int], rng) -> None:
    blocks, start = [], 0
    for length in lengths:
        items = range(start, start + length)
        # A tuple is what comes of items that were dealt one by one, or again.
        blocks.append(Block(items if rng.random() < 0.6 else tuple(items), [i * i for i in items]))
        start += length
    rng.shuffle(blocks)
    delivery = make()
    for block in blocks:
        delivery.put(block)
    delivery.close()
    got = [value for block in delivery.blocks() for value in block.values]
    assert got == [i * i for i in range(start)]
    assert delivery.n_taken == start
    assert delivery.n_bytes == 0


def test_failed_positions_and_bytes_follow_their_items() -> None:
    delivery = make()
    delivery.put(Block((1, 0), ["one", "error"], frozenset({1}), n_bytes=10, device="cpu:0"))
    delivery.close()
    assert delivery.n_bytes == 10
    first, second = delivery.blocks()
    assert (list(first.items), first.values, set(first.failed), first.device) == (
        [0],
        ["error"],
        {0},
        "cpu:0",
    )
    assert (list(second.items), second.values, set(second.failed)) == ([1], ["one"], set())
