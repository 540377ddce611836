"""Parameters of any class of diffusers or transformers, built from its config on torch's meta device."""

import importlib
from collections.abc import Mapping
from typing import Any

from evenload.pipeline.model.parameter_counts import ParameterCount, with_blocks

__all__ = ["count_module", "count_on_meta"]


def count_on_meta(config: Mapping[str, Any], class_name: str) -> ParameterCount:
    """Raises ImportError if the library is not there or does not know the class, and what that raises."""
    torch = importlib.import_module("torch")
    is_diffusers = "_class_name" in config or "_diffusers_version" in config
    library = importlib.import_module("diffusers" if is_diffusers else "transformers")
    found = getattr(library, class_name, None)
    if found is None:
        raise ImportError(f"{library.__name__} {library.__version__} has no {class_name}")
    with torch.device("meta"):
        if is_diffusers:
            return count_module(found.from_config(dict(config)))
        settings = {key: value for key, value in config.items() if key != "architectures"}
        return count_module(found(found.config_class(**settings)))


def count_module(module: Any) -> ParameterCount:
    """Parameters in and beside the list of blocks that holds most of them."""
    from torch.nn import ModuleList

    def n_of(part: Any) -> int:
        return sum(p.numel() for p in part.parameters())

    lists = [part for part in module.modules() if isinstance(part, ModuleList) and len(part) > 1]
    if not lists:
        return ParameterCount(n_of(module))
    return with_blocks(n_of(module), [n_of(block) for block in max(lists, key=n_of)])
