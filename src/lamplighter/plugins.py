"""Functions of the user's own, named as text: `module:function`."""

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from lamplighter.errors import LamplighterError


def load_function(reference: str, option: str) -> Callable[..., Any]:
    """The function that `module:function` names.

    Args:
        reference: a module that can be imported, a colon, and the name of a function in it.
        option: what the function is for, as errors call it.

    >>> load_function("math:sqrt", "score")(9.0)
    3.0
    """
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name or module_name.startswith("."):
        raise LamplighterError(f"{option} {reference!r} does not name a module and a function", "write module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise LamplighterError(
            f"{option} {reference!r}: cannot import {module_name!r} ({error})",
            "check the spelling, and that the module is installed or on PYTHONPATH",
        ) from error
    try:
        function = attrgetter(function_name)(module)
    except AttributeError as error:
        raise LamplighterError(
            f"{option} {reference!r}: module {module_name!r} has no {function_name!r}", "check the spelling"
        ) from error
    if not callable(function):
        raise LamplighterError(
            f"{option} {reference!r} is a {type(function).__name__}, expected a function", "name a function instead"
        )
    return function  # type: ignore[no-any-return]
