"""Products added to weights: the same by our kernel and by torch, which does what the kernel cannot."""

import pytest
import torch

from evenload.clients.fused.inductor import rewrite
from evenload.clients.fused.inductor.rewrite import add_product
from evenload.errors import ConfigError, MissingExtra

K, ROWS, COLUMNS, DEPTH = 3, 7, 21, 5
TOO_DEEP = rewrite.MOST_BYTES // 16 + 1  # also for the narrowest vectors, of 16 bytes


@pytest.fixture(autouse=True)
def fresh():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rewrite.program_for.cache_clear()
    yield
    rewrite.program_for.cache_clear()
    torch.set_num_threads(threads)


def factors(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    shapes = ((K, ROWS, COLUMNS), (K, DEPTH, ROWS), (K, DEPTH, COLUMNS))
    weight, left, right = (torch.randn(shape, generator=g, dtype=dtype) for shape in shapes)
    return weight, left.transpose(1, 2), right


def held_against_torch(weight, left, right, tolerance=1e-13):
    expected = torch.baddbmm(weight, left, right)
    add_product(weight, left, right)
    torch.testing.assert_close(weight, expected, rtol=tolerance, atol=tolerance)


def programs(monkeypatch, make=None):
    """Programs that are asked for, in order; ``make`` instead of the real maker."""
    asked, real = [], make or rewrite.product_program

    def noted(*arguments):
        asked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(rewrite, "product_program", noted)
    return asked


def test_a_kernel_adds_the_product_and_is_made_once(monkeypatch):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    asked = programs(monkeypatch)
    held_against_torch(*factors())
    held_against_torch(*factors())
    held_against_torch(*factors(torch.float32), tolerance=1e-5)
    weight, left, right = factors()
    held_against_torch(weight, left, right.transpose(1, 2).contiguous().transpose(1, 2))
    assert [(product.is_turned, n_bytes) for product, _, n_bytes in asked] == [
        (False, 8),
        (False, 4),
        (True, 8),
    ]


@pytest.mark.parametrize(
    "case",
    [
        lambda w, a, b: (w, a, b.repeat_interleave(2, 2)[:, :, ::2]),
        lambda w, a, b: (w.transpose(1, 2).contiguous().transpose(1, 2), a, b),
        lambda w, a, b: (w.bfloat16(), a.bfloat16(), b.bfloat16()),
        lambda w, a, b: (w, a.new_ones(K, ROWS, TOO_DEEP), b.new_ones(K, TOO_DEEP, COLUMNS)),
    ],
    ids=["columns apart in a factor", "columns apart in the weight", "another dtype", "a factor too large"],
)
def test_torch_does_what_the_kernel_cannot(case, monkeypatch):
    asked = programs(monkeypatch)
    held_against_torch(*case(*factors()))
    assert not asked


def test_torch_shares_products_among_its_threads(monkeypatch):
    asked = programs(monkeypatch)
    torch.set_num_threads(2)
    held_against_torch(*factors())
    assert not asked


@pytest.mark.parametrize(
    "error", [MissingExtra("llvmlite", hint="install it"), ConfigError("the cache is open")]
)
def test_torch_does_it_where_no_kernel_can_be_had(error, monkeypatch, caplog):
    def refuse(*_):
        raise error

    asked = programs(monkeypatch, refuse)
    held_against_torch(*factors())
    held_against_torch(*factors())
    assert len(asked) == 1
    assert ["slower" in r.message for r in caplog.records] == [True] * isinstance(error, ConfigError)
