# ruff: noqa: ANN001, ANN202, N803, PLR0917
# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator,misc,no-untyped-def"
"""Batch norm, ReLU and 2x2 max pooling of several networks in one go, as kernels.

What lies between a convolution and the next is read once and written once each way: what ReLU cut off and where a
maximum was is computed again on the way back, not stored. Images are (networks, images, height, width, channels).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Entries of a tile, and programs that a sum is shared by (which depends on nothing else, so sums are the same bits).
_TILE = 4096
_PROGRAMS = 1056


@triton.jit
def _sums(x, parts, R, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, PARTS: tl.constexpr) -> None:
    """Sums of x - x[0] and of its square over a part of the rows: shifted, so that little is lost by cancellation."""
    network = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    x += network * R * C
    shift = tl.load(x + c).to(tl.float32)[None, :]
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in range(tl.program_id(0) * BR, R, PARTS * BR):
        r = start + tl.arange(0, BR)
        value = tl.load(x + r[:, None] * C + c[None, :], mask=(r < R)[:, None], other=0.0).to(tl.float32) - shift
        value = tl.where((r < R)[:, None], value, 0.0)
        first += value
        second += value * value
    parts += (network * PARTS + tl.program_id(0)) * 2 * C
    tl.store(parts + c, tl.sum(first, 0))
    tl.store(parts + C + c, tl.sum(second, 0))


@triton.jit
def _moments(x, parts, mean, variance, R, C: tl.constexpr, BC: tl.constexpr, PARTS: tl.constexpr) -> None:
    network = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    p = tl.arange(0, PARTS)
    place = parts + network * PARTS * 2 * C + p[:, None] * (2 * C) + c[None, :]
    first = tl.sum(tl.load(place), 0) / R
    second = tl.sum(tl.load(place + C), 0) / R
    shift = tl.load(x + network * R * C + c).to(tl.float32)
    tl.store(mean + network * C + c, shift + first)
    tl.store(variance + network * C + c, tl.maximum(second - first * first, 0.0))


@triton.jit
def _add_parts(parts, first, second, C: tl.constexpr, BC: tl.constexpr, PARTS: tl.constexpr) -> None:
    network = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    p = tl.arange(0, PARTS)
    place = parts + network * PARTS * 2 * C + p[:, None] * (2 * C) + c[None, :]
    tl.store(first + network * C + c, tl.sum(tl.load(place), 0))
    tl.store(second + network * C + c, tl.sum(tl.load(place + C), 0))


@triton.jit
def _corner(r, W: tl.constexpr, POOL: tl.constexpr):
    """The row of x where the window of a pooled row begins; the row itself if nothing is pooled."""
    if not POOL:
        return r
    wide: tl.constexpr = W // 2
    return (r // wide) * (2 * W) + (r % wide) * 2


@triton.jit
def _load(x, row, c, known, C: tl.constexpr):
    return tl.load(x + row[:, None] * C + c[None, :], mask=known, other=0.0).to(tl.float32)


@triton.jit
def _forward(
    x,
    y,
    weight,
    bias,
    mean,
    variance,
    R,
    eps,
    C: tl.constexpr,
    W: tl.constexpr,
    POOL: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    network = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    here = network * C + c
    scale = (tl.rsqrt(tl.load(variance + here) + eps) * tl.load(weight + here))[None, :]
    middle = tl.load(mean + here)[None, :]
    shift = tl.load(bias + here)[None, :]
    known = (r < R)[:, None]
    x += network * R * (4 if POOL else 1) * C
    row = _corner(r, W, POOL)
    z = (_load(x, row, c, known, C) - middle) * scale + shift
    if POOL:
        z = tl.maximum(z, (_load(x, row + 1, c, known, C) - middle) * scale + shift)
        z = tl.maximum(z, (_load(x, row + W, c, known, C) - middle) * scale + shift)
        z = tl.maximum(z, (_load(x, row + W + 1, c, known, C) - middle) * scale + shift)
    y += network * R * C
    tl.store(y + r[:, None] * C + c[None, :], tl.maximum(z, 0.0).to(y.dtype.element_ty), mask=known)


@triton.jit
def _backward_sums(
    x,
    given,
    parts,
    weight,
    bias,
    mean,
    variance,
    R,
    eps,
    C: tl.constexpr,
    W: tl.constexpr,
    POOL: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    network = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    here = network * C + c
    inverse = tl.rsqrt(tl.load(variance + here) + eps)[None, :]
    middle = tl.load(mean + here)[None, :]
    scale = tl.load(weight + here)[None, :]
    shift = tl.load(bias + here)[None, :]
    x += network * R * (4 if POOL else 1) * C
    given += network * R * C
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in range(tl.program_id(0) * BR, R, PARTS * BR):
        r = start + tl.arange(0, BR)
        known = (r < R)[:, None]
        row = _corner(r, W, POOL)
        back = _load(given, r, c, known, C)
        normal = (_load(x, row, c, known, C) - middle) * inverse
        z = normal * scale + shift
        if POOL:
            for k in tl.static_range(1, 4):
                other = (_load(x, row + (k // 2) * W + k % 2, c, known, C) - middle) * inverse
                larger = other * scale + shift > z
                normal = tl.where(larger, other, normal)
                z = tl.where(larger, other * scale + shift, z)
        back = tl.where(z > 0.0, back, 0.0)
        first += back
        second += back * normal
    parts += (network * PARTS + tl.program_id(0)) * 2 * C
    tl.store(parts + c, tl.sum(first, 0))
    tl.store(parts + C + c, tl.sum(second, 0))


@triton.jit
def _backward(
    x,
    given,
    dx,
    weight,
    bias,
    mean,
    variance,
    to_weight,
    to_bias,
    R,
    eps,
    C: tl.constexpr,
    W: tl.constexpr,
    POOL: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    network = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    here = network * C + c
    inverse = tl.rsqrt(tl.load(variance + here) + eps)[None, :]
    middle = tl.load(mean + here)[None, :]
    scale = tl.load(weight + here)[None, :]
    shift = tl.load(bias + here)[None, :]
    rows = R * (4 if POOL else 1)
    by_bias = (tl.load(to_bias + here) / rows)[None, :]
    by_normal = (tl.load(to_weight + here) / rows)[None, :]
    known = (r < R)[:, None]
    x += network * rows * C
    dx += network * rows * C
    row = _corner(r, W, POOL)
    back = _load(given + network * R * C, r, c, known, C)
    normal = (_load(x, row, c, known, C) - middle) * inverse
    if not POOL:
        back = tl.where(normal * scale + shift > 0.0, back, 0.0)
        found = (back - by_bias - normal * by_normal) * (inverse * scale)
        tl.store(dx + row[:, None] * C + c[None, :], found.to(dx.dtype.element_ty), mask=known)
    else:
        z = normal * scale + shift
        which = tl.zeros_like(z)
        for k in tl.static_range(1, 4):
            other = (_load(x, row + (k // 2) * W + k % 2, c, known, C) - middle) * inverse * scale + shift
            which = tl.where(other > z, k, which)
            z = tl.maximum(z, other)
        back = tl.where(z > 0.0, back, 0.0)
        for k in tl.static_range(4):
            place = row + (k // 2) * W + k % 2
            normal = (_load(x, place, c, known, C) - middle) * inverse
            found = (tl.where(which == k, back, 0.0) - by_bias - normal * by_normal) * (inverse * scale)
            tl.store(dx + place[:, None] * C + c[None, :], found.to(dx.dtype.element_ty), mask=known)


class _Cut(NamedTuple):
    """Rows and channels of a tile, and by how many programs the rows of a channel are shared where they are summed."""

    BR: int
    BC: int
    PARTS: int


def _cut(rows: int, channels: int, networks: int, *, pool: bool = False) -> _Cut:
    width = min(128, channels & -channels)
    height = max(8, _TILE // (4 if pool else 1) // width)
    wanted = max(1, _PROGRAMS // (networks * (channels // width)))
    parts = min(triton.next_power_of_2(wanted), triton.next_power_of_2(triton.cdiv(rows, height)), 1024)
    return _Cut(height, width, parts)


def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the mean and the (biased) variance of every channel of every network."""
    networks, images, height, width, channels = x.shape
    rows = images * height * width
    br, bc, parts = _cut(rows, channels, networks)
    sums = x.new_empty(networks, parts, 2, channels, dtype=torch.float32)
    mean, variance = (torch.empty_like(weight) for _ in range(2))
    _sums[(parts, channels // bc, networks)](x, sums, rows, C=channels, BR=br, BC=bc, PARTS=parts)
    narrow = min(bc, max(1, 4096 // parts))
    _moments[(channels // narrow, networks)](x, sums, mean, variance, rows, C=channels, BC=narrow, PARTS=parts)
    if pool:
        rows, height, width = rows // 4, height // 2, width // 2
    y = x.new_empty(networks, images, height, width, channels)
    br, bc, _ = _cut(rows, channels, networks, pool=pool)
    grid = (triton.cdiv(rows, br), channels // bc, networks)
    _forward[grid](x, y, weight, bias, mean, variance, rows, eps, C=channels, W=x.shape[3], POOL=pool, BR=br, BC=bc)
    return y, mean, variance


def backward(
    given: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float, pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to x, the weight and the bias."""
    networks, images, height, width, channels = given.shape
    rows = images * height * width
    br, bc, parts = _cut(rows, channels, networks, pool=pool)
    sums = given.new_empty(networks, parts, 2, channels, dtype=torch.float32)
    shared = (weight, bias, mean, variance)
    form = {"C": channels, "W": x.shape[3], "POOL": pool, "BR": br, "BC": bc}
    _backward_sums[(parts, channels // bc, networks)](x, given, sums, *shared, rows, eps, **form, PARTS=parts)
    to_weight, to_bias = (torch.empty_like(weight) for _ in range(2))
    narrow = min(bc, max(1, 4096 // parts))
    _add_parts[(channels // narrow, networks)](sums, to_bias, to_weight, C=channels, BC=narrow, PARTS=parts)
    dx = torch.empty_like(x)
    grid = (triton.cdiv(rows, br), channels // bc, networks)
    _backward[grid](x, given, dx, *shared, to_weight, to_bias, rows, eps, **form)
    return dx, to_weight, to_bias
