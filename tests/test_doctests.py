"""The examples in docstrings give what they show."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import lamplighter

SOURCE = Path(lamplighter.__file__).parent


def with_examples() -> list[str]:
    """The modules whose source shows an example, by name."""
    shown = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    names = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in shown]
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names]


@pytest.mark.parametrize("name", with_examples())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failures: list[str] = []
    tests = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module, name) if test.examples]
    runner = doctest.DocTestRunner(verbose=False)
    with torch.random.fork_rng(devices=[]):
        for test in tests:
            runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_the_public_functions_show_examples():
    for name in lamplighter.__all__:
        thing = getattr(lamplighter, name)
        if callable(thing) and not (isinstance(thing, type) and issubclass(thing, Exception | Warning)):
            assert ">>> " in (thing.__doc__ or ""), name
