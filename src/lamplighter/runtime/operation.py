"""One operation as the compiled kernels read it: the struct `lamp_op` of kernels.h, and the arrays it points to."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONV, DOT, POOL, MEAN, SPLIT, LOAD, STORE = range(7)

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]
Arrays = dict[str, NDArray[Any] | None]


class Operation(ctypes.Structure):
    """`lamp_op`: what each field means is said in kernels.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "relu", "lanes", "group", "block", "groups", "vectors")),
        *((name, ctypes.c_int32) for name in ("chunk", "tasks", "channels", "batch", "average")),
        *((name, ctypes.c_int32) for name in ("in_h", "in_w", "in_pitch", "out_h", "out_w", "out_pitch")),
        *((name, ctypes.c_int32) for name in ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")),
        ("scale", ctypes.c_float),
        ("phases", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("x_plane", "y_plane", "z_plane")),
        *((name, ctypes.c_void_p) for name in ("x", "z", "y", "mask", "bias", "rows", "counts", "begins")),
        *((name, ctypes.c_void_p) for name in ("offsets", "columns", "weights")),
    ]


def operation(arrays: Arrays, **fields: float) -> Operation:
    """An operation that points to `arrays`, which must live as long as it does."""
    made = Operation(**fields)
    made.lanes = made.lanes or 4
    for name, array in arrays.items():
        setattr(made, name, None if array is None else array.ctypes.data)
    return made


def aligned(size: int) -> Floats:
    """Zeros that begin at a cache line."""
    room = np.zeros(size + 16, np.float32)
    skip = (-room.ctypes.data) % 64 // 4
    return room[skip : skip + size]
