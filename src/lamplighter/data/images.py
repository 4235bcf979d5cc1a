"""Encoded images to uint8 pixels, on all cores."""

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
# Images per task: enough that handing tasks over costs nothing, few enough that little waits in memory.
_TASK = 32


@dataclass(frozen=True, eq=False)
class Split:
    """Labels, and the encoded images in the same order; `encoded` opens them anew each time it is called."""

    labels: NDArray[np.int64]
    encoded: Callable[[], Iterator[bytes]]


def exactly(image: "Image", size: int) -> Pixels:
    """The image itself, which must be `size` pixels on each side."""
    if image.size != (size, size):
        raise LamplighterError(f"an image is {image.width}x{image.height}, not {size}x{size}")
    return np.asarray(image.convert("RGB"))


def square(image: "Image", size: int) -> Pixels:
    """The whole image, resized to `size` pixels on each side whatever its shape was."""
    from PIL.Image import Resampling  # noqa: PLC0415

    # Lets a JPEG decoder halve the image while it decodes, as long as twice the size remains.
    image.draft("RGB", (2 * size, 2 * size))
    return np.asarray(image.convert("RGB").resize((size, size), Resampling.BILINEAR))


def centre(image: "Image", size: int, side: int) -> Pixels:
    """The middle `size` pixels of the image resized so that its shorter side is `side`."""
    from PIL.Image import Resampling  # noqa: PLC0415

    shorter = min(image.size)
    wide, high = (int(side * length / shorter) for length in image.size)
    resized = image.convert("RGB").resize((wide, high), Resampling.BILINEAR)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def decode(
    split: Split,
    convert: Callable[["Image"], Pixels],
    out: Pixels,
    *,
    aspects: NDArray[np.float32] | None = None,
    done: Callable[[int], None] | None = None,
) -> None:
    """Decode every image of `split` into `out`.

    Args:
        split: the encoded images.
        convert: image to pixels.
        out: (images, height, width, 3).
        aspects: receives width / height of each image as it was.
        done: called with the number of images decoded so far.
    """
    from PIL import Image  # noqa: PLC0415

    def one(index: int, blob: bytes) -> None:
        try:
            with Image.open(io.BytesIO(blob)) as image:
                if aspects is not None:
                    aspects[index] = image.width / image.height
                out[index] = convert(image)
        except LamplighterError as error:
            raise LamplighterError(f"image {index}: {error.message}", error.hint) from error
        except OSError as error:  # Pillow's own errors derive from it
            raise LamplighterError(f"image {index} cannot be decoded: {error}") from error

    def task(first: int, blobs: list[bytes]) -> int:
        for place, blob in enumerate(blobs):
            one(first + place, blob)
        return len(blobs)

    threads = os.cpu_count() or 1
    encoded = split.encoded()
    count = 0
    with ThreadPoolExecutor(threads) as pool:
        # In portions, because the pool would otherwise hold all encoded images at once.
        while blobs := list(islice(encoded, 8 * threads * _TASK)):
            starts = range(0, len(blobs), _TASK)
            tasks = [pool.submit(task, count + start, blobs[start : start + _TASK]) for start in starts]
            count += sum(future.result() for future in tasks)
            if done is not None:
                done(count)
    assert count == len(split.labels)
