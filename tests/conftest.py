"""Small files in the schemas of the real data, and where the real data is if it is here."""

import io
import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def real_data():
    """The folder of the real data; LAMPLIGHTER_DATA names it, else it lies beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("LAMPLIGHTER_DATA", beside))


@pytest.fixture(scope="session", name="encode")
def _encode():
    return encode


def encode(pixels, kind="png"):
    """The bytes of an image file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"lossless": True} if kind == "webp" else {}))
    return buffer.getvalue()


@pytest.fixture
def write_images():
    """Writes random images and labels as parquet in the hub's schema, and returns the pixels."""

    def write(path, labels, *, image="img", label="label", kind="png", size=(32, 32), seed=0):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), *size, 3), np.uint8)
        rows = pa.array(
            [{"bytes": encode(one, kind), "path": None} for one in pixels],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({image: rows, label: pa.array(labels, pa.int64())}), path, row_group_size=3)
        return pixels

    return write


@pytest.fixture
def write_lines():
    """Writes lines as parquet in the hub's schema."""

    def write(path, lines, column):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({column: lines}), path)

    return write
