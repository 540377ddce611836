"""Run a plain Python function as a stage."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any

from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.target import LiveCode, load_target, locate_target


class Function:
    """A stage that calls ``function(inputs, item, **call)``: a dict of outputs, or one value for ``output``.

    function  file.py:name, relative to the job file, or package.module:name; it may be async, and may take
              ``inputs`` alone
    """

    def __init__(self, context: StageContext, *, function: str | LiveCode, output: str = "output"):
        self._function = load_target(locate_target(function, context.folder))
        self._output = output
        self._second = _second_argument(self._function)
        is_async = inspect.iscoroutinefunction
        self.is_async = is_async(self._function) or is_async(type(self._function).__call__)

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> Any:
        takes_item = self._second is not None and self._second not in call
        returned = self._function(inputs, item, **call) if takes_item else self._function(inputs, **call)
        return self._awaited(returned) if self.is_async else self._named(returned)

    async def _awaited(self, returned: Awaitable[Any]) -> Mapping[str, Any]:
        return self._named(await returned)

    def _named(self, returned: Any) -> Mapping[str, Any]:
        return returned if isinstance(returned, Mapping) else {self._output: returned}


def _second_argument(function: Any) -> str | None:
    """Return the name of what a function takes after its first argument; None if it takes only one by place.

    "" where it does not say, or takes any number.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ""
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return ""
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return names[1] if len(names) > 1 else None
