"""Count the parameters of any class of diffusers or transformers, built on torch's meta device."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from evenload.pipeline.model.parameter_counts import ParameterCount, with_blocks


def count_on_meta(config: Mapping[str, Any], class_name: str) -> ParameterCount:
    """Count the class ``class_name`` with this config.

    Raises ImportError if the library is missing or does not know the class, and what the class raises.
    """
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
    """Count the parameters in and beside the list of blocks that holds most of them."""

    def n_of(part: Any) -> int:
        return sum(p.numel() for p in part.parameters())

    blocks = largest_block_list(module, n_of)
    return (
        ParameterCount(n_of(module)) if blocks is None else with_blocks(n_of(module), list(map(n_of, blocks)))
    )


def largest_block_list(module: Any, size_of: Callable[[Any], int]) -> Any:
    """Return the ModuleList in ``module``, of two blocks or more, of the largest size; or None."""
    from torch.nn import ModuleList

    lists = [part for part in module.modules() if isinstance(part, ModuleList) and len(part) > 1]
    return max(lists, key=size_of, default=None)
