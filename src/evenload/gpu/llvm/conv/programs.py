"""The programs of convolutions and poolings, each made for one shape; loads what emits them only to compile.

``by_samples`` and ``by_channels`` say what their three kernels take, ``pooling`` what its two.
"""

import functools
import importlib
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

from evenload.gpu.llvm import program
from evenload.gpu.llvm.conv.geometry import Geometry
from evenload.gpu.llvm.program import Program

CONVOLUTION = {"forward": 7, "input_gradient": 6, "weight_gradient": 7}
POOLING = {"forward": 5, "backward": 5}
SOURCES = ("llvm.conv.programs", "llvm.conv.geometry", "llvm.field.floats", "llvm.ir_builder")


@functools.cache
def conv_program(g: Geometry, lanes: int, n_bytes: int) -> Program:
    """The kernels for one geometry: ``lanes`` samples in a vector, numbers of ``n_bytes``.

    Raises MissingExtra.
    """
    return _convolution("conv", "by_samples", g, lanes, n_bytes)


@functools.cache
def channel_program(g: Geometry, lanes: int, n_bytes: int) -> Program:
    """The kernels for one geometry, with ``lanes`` channels in a vector. Raises MissingExtra."""
    return _convolution("channels", "by_channels", g, lanes, n_bytes)


def _convolution(kind: str, module: str, g: Geometry, lanes: int, n_bytes: int) -> Program:
    def bodies() -> Any:
        from evenload.gpu.llvm.field.floats import Floats

        emitter: Any = importlib.import_module(f"evenload.gpu.llvm.conv.{module}")

        def input_gradient(code: Any, grad: Any, weight: Any, *rest: Any) -> None:
            """Emit the turned convolution, which has no bias."""
            emitter.convolve(Floats(code, lanes, n_bytes), g.turned(), grad, weight, None, *rest)

        return SimpleNamespace(
            forward=lambda code, *given: emitter.convolve(Floats(code, lanes, n_bytes), g, *given),
            input_gradient=input_gradient,
            weight_gradient=lambda code, *given: emitter.weight_gradient(
                Floats(code, lanes, n_bytes), g, *given
            ),
        )

    shape = (*astuple(g), lanes, n_bytes)
    return program.made_for(kind, shape, CONVOLUTION, bodies, (f"llvm.conv.{module}", *SOURCES))


@functools.cache
def pool_program(height: int, width: int, size: int, lanes: int, n_bytes: int) -> Program:
    """The kernels for images of one shape and windows of ``size`` x ``size``. Raises MissingExtra."""
    shape = (height, width, size, lanes, n_bytes)

    def bodies() -> Any:
        from evenload.gpu.llvm.conv.pooling import Pooling

        return Pooling(*shape)

    return program.made_for("pool", shape, POOLING, bodies, ("llvm.conv.pooling", *SOURCES))
