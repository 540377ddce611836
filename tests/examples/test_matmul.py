"""A product over several devices is the product."""

import numpy as np
import pytest
from loaded_programs import load


@pytest.fixture(scope="module")
def example():
    return load("examples/matmul/product.py")


@pytest.mark.parametrize(("shape", "devices"), [((7, 11, 5), "cpu*3"), ((64, 64, 64), "cpu*2")])
def test_a_product_in_a_ring_is_the_product(example, shape, devices):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(shape[:2]), rng.standard_normal(shape[1:])
    got = example.multiply(a, b, devices, timeout_s=100)
    assert got.shape == (shape[0], shape[2])
    np.testing.assert_allclose(got, a @ b, rtol=1e-12, atol=1e-12)
