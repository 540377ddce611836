"""The context variables that an item finds: each runs in a copy, so that none finds what another has set.

Of the caller's context, decimal's (precision, rounding) and numpy's treatment of errors travel to other
processes; variables of anybody cannot, as they are known by identity.
"""

import contextlib
import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, NamedTuple

USUAL_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


class CallerContext(NamedTuple):
    """What travels of a caller's context; None where nothing was set.

    decimal       the context of decimal numbers, without the flags of earlier results
    numpy_errors  as ``numpy.seterr`` takes them
    """

    decimal: Any = None
    numpy_errors: dict[str, Any] | None = None

    @classmethod
    def of_now(cls) -> "CallerContext | None":
        decimal = _decimal_context(copy_context())
        if decimal is not None:
            decimal.clear_flags()
        numpy, errors = sys.modules.get("numpy"), USUAL_ERRORS
        with contextlib.suppress(AttributeError):  # it is not loaded to its end
            errors = numpy.geterr() if numpy is not None else USUAL_ERRORS
        found = cls(decimal, None if errors == USUAL_ERRORS else errors)
        return None if found == cls() else found

    def enter(self) -> None:
        if self.decimal is not None:
            import decimal

            decimal.setcontext(self.decimal)
        if self.numpy_errors is not None:
            import numpy

            numpy.seterr(**self.numpy_errors)


class ItemContexts:
    """Contexts for a task's items, each a copy of what its constructor left.

    ``fresh`` makes one. A context of decimal numbers is copied, too: all who have it may change it.
    """

    def __init__(self, caller: CallerContext | None = None) -> None:
        base = copy_context()
        if caller is not None:
            base.run(caller.enter)
        self.keep(base)

    def build(self, make: Callable[[], Any]) -> Any:
        """Call a task's constructor, whose settings its items find."""
        try:
            return self._base.run(make)
        finally:
            self.keep(self._base)

    def keep(self, base: Context) -> None:
        """Have what ``base`` holds now be what items find."""
        self._base, self._decimal = base, _decimal_context(base)
        self.fresh: Callable[[], Context] = base.copy if self._decimal is None else self._with_decimal

    def _with_decimal(self) -> Context:
        context = self._base.copy()
        context.run(sys.modules["decimal"].setcontext, self._decimal.copy())
        return context


def _decimal_context(context: Context) -> Any:
    """Return a copy of decimal's context in ``context``, or None: to ask decimal itself would make one."""
    found = next((value for variable, value in context.items() if variable.name == "decimal_context"), None)
    return None if found is None else found.copy()
