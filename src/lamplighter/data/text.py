"""Plain text to word numbers: which file is which split, and the vocabulary."""

import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamplighter.data import parquet
from lamplighter.errors import LamplighterError

END = "<eos>"
UNKNOWN = "<unk>"
_SPLIT = re.compile(r"(?:^|[^a-z])(train|valid|test)(?:ation)?(?:[^a-z]|$)")
_SUFFIXES = frozenset({".txt", ".tokens"})


def read(source: Path, names: Sequence[str], config: str, column: str) -> dict[str, list[str]]:
    """The lines of each split found at `source`.

    Args:
        source: a tar archive; or a folder with text files, with parquet files, or with an archive.
        names: how the name of such an archive begins.
        config: subfolder that parquet files may be in.
        column: column of the lines in parquet files.
    """
    if source.is_file():
        return _archive(source)
    # A longer name is a variant (by characters, say), so the shortest is read last and stays.
    files = sorted(
        (p for p in (*source.glob("*"), *source.glob("data/*")) if _is_text(p.name)), key=lambda p: -len(p.name)
    )
    if files:
        return {_split_of(path.name): _lines(path.read_text("utf-8")) for path in files}
    tables = {"train": "train", "valid": "validation", "test": "test"}
    found = {split: parquet.find(source, stem, config) for split, stem in tables.items()}
    if any(found.values()):
        return {split: parquet.read_lines(paths, column) for split, paths in found.items() if paths}
    for path in sorted(source.iterdir()):
        if path.name.startswith(tuple(names)) and ".t" in path.name:
            return _archive(path)
    return {}


def _split_of(name: str) -> str:
    found = _SPLIT.search(name.lower())
    return found.group(1) if found else ""


def _is_text(name: str) -> bool:
    return Path(name).suffix in _SUFFIXES and _split_of(name) != ""


def _archive(path: Path) -> dict[str, list[str]]:
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile() and _is_text(Path(member.name).name)]
            found = {}
            for member in sorted(members, key=lambda member: -len(member.name)):
                content = archive.extractfile(member)
                assert content is not None
                found[_split_of(Path(member.name).name)] = _lines(content.read().decode("utf-8"))
            return found
    except tarfile.ReadError as error:
        raise LamplighterError(f"{path} is not a tar archive that can be read: {error}") from error


def _lines(text: str) -> list[str]:
    """By newline alone: `str.splitlines` would also split at characters that texts contain."""
    return text.removesuffix("\n").split("\n")


def tokens(lines: Sequence[str]) -> list[str]:
    """The words of every line, each line followed by the end mark.

    >>> tokens(["no it was", ""])
    ['no', 'it', 'was', '<eos>', '<eos>']
    """
    return [word for line in lines for word in (*line.split(), END)]


def vocabulary(train: Sequence[str]) -> list[str]:
    """The words of the training text, most frequent first, ties in alphabetical order."""
    return [word for word, _ in sorted(Counter(train).items(), key=lambda item: (-item[1], item[0]))]


def encode(name: str, splits: Mapping[str, Sequence[str]]) -> tuple[dict[str, NDArray[np.int32]], list[str]]:
    """Word numbers of each split (tokens), and the vocabulary of the training split."""
    words = vocabulary(splits["train"])
    index = {word: i for i, word in enumerate(words)}
    numbers = {}
    for split, content in splits.items():
        strange = sorted({word for word in content if word not in index})
        if strange and UNKNOWN not in index:
            raise LamplighterError(
                f"{name}: the {split} split has words that the training split does not: {', '.join(strange[:5])}",
                f"the three splits must belong together, or the text must use {UNKNOWN}",
            )
        other = index.get(UNKNOWN, 0)
        numbers[split] = np.fromiter((index.get(word, other) for word in content), np.int32, len(content))
    return numbers, words
