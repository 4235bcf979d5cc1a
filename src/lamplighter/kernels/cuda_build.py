# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-call"
"""Compiling readings.cu for a device, and starting its kernels on PyTorch's current stream."""

import ctypes
import functools
import warnings
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from lamplighter.errors import LamplighterWarning


class Launch:
    """The compiled kernels for one device and width.

    Args:
        binary: what was compiled.
        device: where they run.
    """

    def __init__(self, binary: bytes, device: torch.device) -> None:
        from cuda.bindings import driver  # noqa: PLC0415

        self._driver = driver
        self.device = device
        self.multiprocessors: int = torch.cuda.get_device_properties(device).multi_processor_count
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # so that the device's context is there
            self._module = _checked(driver.cuModuleLoadData(binary))
        self._functions: dict[str, Any] = {}

    def __call__(self, name: str, blocks: int, threads: int, shared: int, *arguments: Tensor | int) -> None:
        """Start a kernel; tensors are handed over by their address, integers as 32-bit ones."""
        values = tuple(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments)
        kinds = tuple(ctypes.c_void_p if isinstance(each, Tensor) else ctypes.c_int for each in arguments)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            function = self._function(name, shared)
            _checked(
                self._driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, (values, kinds), 0)
            )

    def _function(self, name: str, shared: int) -> Any:  # noqa: ANN401
        if name not in self._functions:
            function = _checked(self._driver.cuModuleGetFunction(self._module, name.encode()))
            if shared > 48 * 1024:
                attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _checked(self._driver.cuFuncSetAttribute(function, attribute, shared))
            self._functions[name] = function
        return self._functions[name]


@functools.cache
def module_for(device: torch.device, width: int, shift: int) -> Launch | None:
    """The kernels for entries of some width; None, with a warning, where they cannot be had."""
    if torch.version.hip is not None:
        return None
    try:
        return Launch(compiled(torch.cuda.get_device_capability(device), width, shift), device)
    except (ImportError, RuntimeError, OSError) as error:
        warnings.warn(f"no CUDA kernels: {error}; slower operations are used", LamplighterWarning, stacklevel=2)
        return None


def compiled(capability: tuple[int, int], width: int, shift: int) -> bytes:
    """The kernels' machine code for a GPU of some compute capability."""
    from cuda.bindings import nvrtc  # noqa: PLC0415

    source = files("lamplighter.kernels").joinpath("readings.cu").read_bytes()
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"readings.cu", 0, [], []))
    major, minor = capability
    options = [f"--gpu-architecture=sm_{major}{minor}", f"-DWIDTH={width}", f"-DSHIFT={shift}"]
    failure, *_ = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if failure.value:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"readings.cu does not compile: {log.decode(errors='replace').strip()}")
    binary: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, binary))
    return binary


def _checked(result: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """What a call returned, after its status."""
    status, *rest = result
    if status.value:
        raise RuntimeError(f"{status.name}")
    return rest[0] if rest else None
