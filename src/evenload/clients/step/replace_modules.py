"""Replaces submodules of a model wherever they are used."""

from collections.abc import Callable

from torch import nn


def replace_modules(model: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace every submodule that ``make`` returns another one for; returns ``model`` itself.

    A module that is used in several places, or under several names, is replaced by one and the same.
    """
    found: dict[int, tuple[nn.Module, nn.Module | None]] = {}  # holds the originals, so that no id is reused
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if id(child) not in found:
                found[id(child)] = child, make(child)
            twin = found[id(child)][1]
            if twin is not None:
                parent._modules[name] = twin
    return model
