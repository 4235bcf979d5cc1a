# ruff: noqa: ANN001, N803, N806, PLR0917
# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator,misc,no-untyped-def"
"""Convolutions of several networks at once, as matrix products on a GPU's matrix units.

Each kernel gathers the rows of its products as it goes (implicit im2col), for one tile of one network's result; tiles
of all networks fill the device together, where those of one network of CIFAR's size leave most of it idle. Images are
(networks, images, height, width, channels), weights (networks, outputs, height, width, inputs). Sums are fp32.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(
    x,
    w,
    y,
    N,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CO: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    M = N * HO * WO
    tiles = (CO + BN - 1) // BN
    network = tl.program_id(1).to(tl.int64)
    x += network * N * (H * W * C)
    w += network * (CO * R * S * C)
    y += network * M * CO
    m = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    co = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    n = m // (HO * WO)
    top = (m // WO) % HO * STRIDE - PAD
    left = m % WO * STRIDE - PAD
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    if C % BK == 0:
        corner = ((n * H + top) * W + left) * C
        for part in range(R * S * (C // BK)):
            r = part // (C // BK) // S
            s = part // (C // BK) % S
            c = (part % (C // BK)) * BK + k
            inside = (m < M) & (top + r >= 0) & (top + r < H) & (left + s >= 0) & (left + s < W)
            a = tl.load(x + (corner + (r * W + s) * C)[:, None] + c[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(
                w + (co * (R * S * C))[None, :] + ((r * S + s) * C + c)[:, None], mask=(co < CO)[None, :], other=0.0
            )
            total = tl.dot(a, b, total)
    else:  # few or odd channels: every column of the product has a place of its own
        for begin in range(0, R * S * C, BK):
            q = begin + k
            known = q < R * S * C
            row = top[:, None] + (q // C // S)[None, :]
            column = left[:, None] + (q // C % S)[None, :]
            inside = (m < M)[:, None] & known[None, :] & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            a = tl.load(x + (((n * H)[:, None] + row) * W + column) * C + (q % C)[None, :], mask=inside, other=0.0)
            b = tl.load(
                w + (co * (R * S * C))[None, :] + q[:, None], mask=(co < CO)[None, :] & known[:, None], other=0.0
            )
            total = tl.dot(a, b, total)
    tl.store(
        y + m[:, None] * CO + co[None, :], total.to(y.dtype.element_ty), mask=(m < M)[:, None] & (co < CO)[None, :]
    )


@triton.jit
def _to_input(
    dy,
    w,
    dx,
    N,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CO: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    M = N * H * W
    tiles = (C + BN - 1) // BN
    network = tl.program_id(1).to(tl.int64)
    dy += network * N * (HO * WO * CO)
    w += network * (CO * R * S * C)
    dx += network * M * C
    m = (tl.program_id(0) // tiles) * BM + tl.arange(0, BM)
    c = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    n = m // (H * W)
    bottom = (m // W) % H + PAD
    right = m % W + PAD
    blocks = (CO + BK - 1) // BK
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for part in range(R * S * blocks):
        r = part // blocks // S
        s = part // blocks % S
        co = (part % blocks) * BK + k
        row = bottom - r
        column = right - s
        inside = m < M
        if STRIDE != 1:
            inside = inside & (row % STRIDE == 0) & (column % STRIDE == 0)
            row = row // STRIDE
            column = column // STRIDE
        inside = inside & (bottom >= r) & (row < HO) & (right >= s) & (column < WO)
        if CO % BK == 0:
            a_mask = inside[:, None]
            b_mask = (c < C)[None, :]
        else:
            a_mask = inside[:, None] & (co < CO)[None, :]
            b_mask = (co < CO)[:, None] & (c < C)[None, :]
        a = tl.load(dy + (((n * HO + row) * WO + column) * CO)[:, None] + co[None, :], mask=a_mask, other=0.0)
        b = tl.load(w + (co * (R * S * C) + (r * S + s) * C)[:, None] + c[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total)
    tl.store(dx + m[:, None] * C + c[None, :], total.to(dx.dtype.element_ty), mask=(m < M)[:, None] & (c < C)[None, :])


@triton.jit
def _to_weight(
    x,
    dy,
    dw,
    N,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    HO: tl.constexpr,
    WO: tl.constexpr,
    CO: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    M = N * HO * WO
    network = tl.program_id(2).to(tl.int64)
    x += network * N * (H * W * C)
    dy += network * M * CO
    dw += (network * SPLITS + tl.program_id(1)) * (CO * R * S * C)
    columns = (R * S * C + BN - 1) // BN
    co = (tl.program_id(0) // columns) * BM + tl.arange(0, BM)
    first = (tl.program_id(0) % columns) * BN
    q = first + tl.arange(0, BN)
    length = (M + SPLITS * BK - 1) // (SPLITS * BK) * BK
    begin = tl.program_id(1) * length
    end = min(begin + length, M)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(begin, end, BK):
        m = start + k
        n = m // (HO * WO)
        top = (m // WO) % HO * STRIDE - PAD
        left = m % WO * STRIDE - PAD
        a = tl.load(dy + m[:, None] * CO + co[None, :], mask=(m < end)[:, None] & (co < CO)[None, :], other=0.0)
        if C % BN == 0:  # one place of the kernel for the whole tile
            row = top + first // C // S
            column = left + first // C % S
            inside = ((m < end) & (row >= 0) & (row < H) & (column >= 0) & (column < W))[:, None]
            place = (((n * H + row) * W + column) * C)[:, None]
        else:
            row = top[:, None] + (q // C // S)[None, :]
            column = left[:, None] + (q // C % S)[None, :]
            inside = (m < end)[:, None] & (q < R * S * C)[None, :]
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            place = (((n * H)[:, None] + row) * W + column) * C
        b = tl.load(x + place + (q % C)[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(a), b, total)
    known = (co < CO)[:, None] & (q < R * S * C)[None, :]
    tl.store(dw + co[:, None] * (R * S * C) + q[None, :], total.to(dw.dtype.element_ty), mask=known)


@triton.jit
def _add_up(parts, total, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr) -> None:
    network = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    parts += network * SPLITS * size
    found = tl.zeros((DEPTH, BLOCK), tl.float32)
    for begin in range(0, SPLITS, DEPTH):
        split = begin + tl.arange(0, DEPTH)
        known = (split < SPLITS)[:, None] & (place < size)[None, :]
        found += tl.load(parts + split[:, None] * size + place[None, :], mask=known, other=0.0)
    tl.store(total + network * size + place, tl.sum(found, 0).to(total.dtype.element_ty), mask=place < size)


class Tiles(NamedTuple):
    """How a product is cut up: rows, columns and depth of a tile, warps for each, and stages of its pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# Found by trying: on one H200 the fastest for the layers of VGG-16, with five networks.
_NARROW = Tiles(128, 64, 64, 4, 4)
_SMALL = Tiles(64, 64, 64, 4, 4)
_SQUARE = Tiles(128, 128, 64, 8, 3)
_WIDE = Tiles(128, 256, 64, 8, 3)
# Tiles should be at least about as many as the device has multiprocessors, or some of these have nothing to do.
_ENOUGH = 120
# What a weight's gradient is cut into, by splitting its sum, where its tiles alone are fewer.
_WANTED = 500


class Geometry(NamedTuple):
    """The sizes of a convolution, as its kernels take them."""

    N: int
    H: int
    W: int
    C: int
    HO: int
    WO: int
    CO: int
    R: int
    S: int
    STRIDE: int
    PAD: int


def geometry(images: tuple[int, ...], weights: tuple[int, ...], stride: int, padding: int) -> Geometry:
    """Of images (networks, images, height, width, channels) and weights (networks, outputs, height, width, inputs)."""
    _, count, height, width, channels = images
    _, outputs, rows, columns, _ = weights
    down, across = (height + 2 * padding - rows) // stride + 1, (width + 2 * padding - columns) // stride + 1
    return Geometry(count, height, width, channels, down, across, outputs, rows, columns, stride, padding)


def tiles_for(rows: int, columns: int, depth: int, networks: int) -> Tiles:
    """The largest tiles that fit a product of this size and are still enough to occupy the device."""
    if depth < 16 or depth % 16:
        return Tiles(128, 64, 32, 4, 2)
    deep = 64 if depth % 64 == 0 else 32 if depth % 32 == 0 else 16
    for tiles in (_WIDE, _SQUARE):
        wide_enough = columns >= tiles.columns
        if wide_enough and networks * triton.cdiv(rows, tiles.rows) * triton.cdiv(columns, tiles.columns) >= _ENOUGH:
            return tiles._replace(depth=deep)
    few = networks * triton.cdiv(rows, _NARROW.rows) * triton.cdiv(columns, _NARROW.columns) < _ENOUGH
    return (_SMALL if few else _NARROW)._replace(depth=deep)


def forward(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """The convolutions."""
    sizes = geometry(x.shape, w.shape, stride, padding)
    y = x.new_empty(len(x), sizes.N, sizes.HO, sizes.WO, sizes.CO)
    rows = sizes.N * sizes.HO * sizes.WO
    tiles = tiles_for(rows, sizes.CO, sizes.C, len(x))
    grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(sizes.CO, tiles.columns), len(x))
    _forward[grid](x, w, y, *sizes, **_options(tiles))
    return y


def to_input(dy: Tensor, w: Tensor, images: tuple[int, ...], stride: int, padding: int) -> Tensor:
    """The gradient with respect to the images."""
    sizes = geometry(images, w.shape, stride, padding)
    dx = dy.new_empty(images)
    rows = sizes.N * sizes.H * sizes.W
    tiles = tiles_for(rows, sizes.C, sizes.CO, len(dy))
    grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(sizes.C, tiles.columns), len(dy))
    _to_input[grid](dy, w, dx, *sizes, **_options(tiles))
    return dx


def weight_tiles(sizes: Geometry, networks: int) -> tuple[Tiles, int]:
    """The tiles of a weight's gradient, and into how many parts its sum is split."""
    columns = sizes.R * sizes.S * sizes.C
    tiles = _SQUARE
    if sizes.C % tiles.columns or networks * (sizes.CO // tiles.rows) * (columns // tiles.columns) < 0.7 * _WANTED:
        if sizes.C % 16:
            tiles = Tiles(64, 32, 128, 4, 2)
        else:
            width = 64 if sizes.C % 64 == 0 else 32 if sizes.C % 32 == 0 else 16
            tiles = Tiles(128 if sizes.CO >= 128 else 64, width, 64, 4, 3)
    count = networks * triton.cdiv(sizes.CO, tiles.rows) * triton.cdiv(columns, tiles.columns)
    most = max(1, sizes.N * sizes.HO * sizes.WO // 256)
    return tiles, max(1, min(_WANTED // count, most))


def to_weight(x: Tensor, dy: Tensor, weights: tuple[int, ...], stride: int, padding: int) -> Tensor:
    """The gradient with respect to the weights. Sums that are split are added up in order: the same bits every time."""
    sizes = geometry(x.shape, weights, stride, padding)
    tiles, splits = weight_tiles(sizes, len(x))
    dw = x.new_empty(weights)
    parts = dw if splits == 1 else dw.new_empty(len(x), splits, *weights[1:], dtype=torch.float32)
    columns = triton.cdiv(sizes.R * sizes.S * sizes.C, tiles.columns)
    grid = (triton.cdiv(sizes.CO, tiles.rows) * columns, splits, len(x))
    _to_weight[grid](x, dy, parts, *sizes, SPLITS=splits, **_options(tiles))
    if splits > 1:
        size = dw[0].numel()
        _add_up[(triton.cdiv(size, 128), len(x))](parts, dw, size, SPLITS=splits, BLOCK=128, DEPTH=16)
    return dw


def _options(tiles: Tiles) -> dict[str, Any]:
    rows, columns, depth, warps, stages = tiles
    return {"BM": rows, "BN": columns, "BK": depth, "num_warps": warps, "num_stages": stages}
