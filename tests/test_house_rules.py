"""House rules that a machine can check. Each test lists the places that break one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted(path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
DUMPING_GROUNDS = {"common", "helper", "helpers", "misc", "util", "utils"}
BANNED_WORDS = {"amount", "level", "ratio"}  # say sparsity, density, keep or budget
PICKLING = {"dill", "joblib", "marshal", "pickle", "shelve"}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """The nodes of these kinds in the sources, each with its place."""
    for path in FILES:
        if path.is_relative_to(ROOT / "src"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kinds):
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def test_functions_live_with_their_noun():
    parts = {path: {part.removesuffix(".py") for part in path.relative_to(ROOT).parts} for path in FILES}
    assert [path for path in FILES if parts[path] & DUMPING_GROUNDS] == []


def test_the_first_line_of_a_file_says_what_it_is_for():
    for path in FILES:
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        assert re.search(r"\w.*[.:?]$", first), f"{path.relative_to(ROOT)} should begin with a docstring, a sentence"


def test_public_parameters_are_called_by_the_words_of_the_house():
    offences = []
    for place, node in nodes(ast.FunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        words = {word for name in (node.name, *(each.arg for each in arguments)) for word in name.lower().split("_")}
        if not node.name.startswith("_") and words & BANNED_WORDS:
            offences.append((place, node.name, words & BANNED_WORDS))
    assert offences == []


def test_nothing_is_pickled():
    imported = []
    for place, node in nodes(ast.Import, ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        imported += [(place, name) for name in names if name.partition(".")[0] in PICKLING]
    assert imported == []
    calls = [(place, ast.unparse(node)) for place, node in nodes(ast.Call)]
    restricted = {place for place, call in calls if call.startswith("torch.load(") and "weights_only=True" in call}
    named = [place for place, node in nodes(ast.Attribute) if ast.unparse(node) in ("torch.save", "torch.load")]
    through_torch = [place for place in named if place not in restricted]  # others' checkpoints are read, not executed
    assert through_torch == [], "tensors go into safetensors"


def test_no_function_is_longer_than_a_screen():
    """Sixty lines at most, signature and docstring left out."""
    long = []
    for place, node in nodes(ast.FunctionDef):
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if body and body[-1].end_lineno - body[0].lineno >= 60:
            long.append((place, node.name))
    assert long == []
