"""Max pooling kernels: torch's own values and gradients, where numbers are equal or none, too."""

import numpy as np
import pytest
import torch

from evenload.gpu.llvm.conv.programs import pool_program

pytest.importorskip("llvmlite")


@pytest.mark.parametrize(
    ("shape", "size", "lanes", "dtype"),
    [
        ((32, 3, 4, 6), 2, 16, torch.float32),
        ((10, 2, 7, 5), 2, 8, torch.float32),
        ((5, 2, 9, 10), 3, 4, torch.float64),
        ((17, 1, 5, 5), 5, 8, torch.float64),
    ],
)
def test_values_and_gradients_are_torchs_own(shape, size, lanes, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 2, shape, generator=generator).to(dtype)  # many are equal
    x[torch.rand(shape, generator=generator) < 0.03] = float("nan")
    x.requires_grad_()
    y = torch.nn.functional.max_pool2d(x, size)
    grad = torch.randn(y.shape, generator=generator, dtype=dtype)
    y.backward(grad)
    own_x, own_grad = (np.ascontiguousarray(np.moveaxis(t.detach().numpy(), 0, -1)) for t in (x, grad))
    largest, dx = np.empty_like(own_grad), np.full_like(own_x, 7.0)
    places = np.empty(own_grad.shape, np.int32 if dtype == torch.float32 else np.int64)
    program = pool_program(*shape[2:], size, lanes, dtype.itemsize)
    program.forward(*(a.ctypes.data for a in (own_x, largest, places)), shape[1], shape[0])
    program.backward(*(a.ctypes.data for a in (own_grad, places, dx)), shape[1], shape[0])
    np.testing.assert_array_equal(np.moveaxis(largest, -1, 0), y.detach().numpy())
    assert x.grad is not None
    np.testing.assert_array_equal(np.moveaxis(dx, -1, 0), x.grad.numpy())
