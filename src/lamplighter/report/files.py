"""Files that no reader meets half-written."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it; its folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
