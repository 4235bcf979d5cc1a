"""How fast training is: VGG-16 on 32x32 images step by step, compiled, recorded, and several trials at once.

Random images stand in for CIFAR-10, which changes no speed. Each variant is measured in a process of its own, so that
one that fails, or hangs, costs only itself.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lamplighter.benchmarking.pruning import check_device
from lamplighter.data.dataset import Dataset
from lamplighter.errors import LamplighterError
from lamplighter.models.vgg import vgg16
from lamplighter.naming import closest
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings
from lamplighter.training.trials import fit_many

WARMUP = 10  # steps before those that are timed; compilation and the choice of kernels happen in them
KERNELS = 40
LOG = 6000  # characters that are kept of what a failed variant said


@dataclass(frozen=True)
class Variant:
    """One way to train. Without a method it is one trial on its own, whatever number of trials was asked for."""

    method: Literal["", "branches", "streams", "stacked"] = ""
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    compiled: bool = True
    autotune: bool = False
    graph: bool = True
    density: float = 1.0

    @property
    def needs_cuda(self) -> bool:
        """Whether the variant means anything only on CUDA."""
        return self.graph or self.precision == "tf32"


PLAIN = "loop-fp32"  # what the others are compared with
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant(precision="fp32", compiled=False, graph=False),
    "loop-tf32": Variant(precision="tf32", compiled=False, graph=False),
    "loop-bf16": Variant(compiled=False, graph=False),
    "compiled-bf16": Variant(graph=False),
    "graph-tf32": Variant(precision="tf32"),
    "graph-bf16": Variant(),
    "branches": Variant("branches"),
    "streams": Variant("streams"),
    "stacked": Variant("stacked"),
    "stacked-sparse": Variant("stacked", density=0.0115),
    "branches-sparse": Variant("branches", density=0.0115),
    "stacked-loop": Variant("stacked", "fp32", compiled=False, graph=False),
    "graph-bf16-autotuned": Variant(autotune=True),
    "branches-autotuned": Variant("branches", autotune=True),
}


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        variants: names of `VARIANTS`, in the order in which they are measured.
        steps: optimizer steps that are timed.
        batch: images per step.
        width: outputs of the network's first convolution; 64 is VGG-16.
        device: cuda, cuda:1 or cpu.
        trials: how many networks the variants with several train together.
        limit: seconds that each variant may take.
        profile: variants whose kernels are listed as well.
    """

    variants: tuple[str, ...]
    steps: int = 1000
    batch: int = 100
    width: int = 64
    device: str = "cuda"
    trials: int = 5
    limit: float = 180.0
    profile: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        for name in (*self.variants, *self.profile):
            if name not in VARIANTS:
                raise LamplighterError(f"there is no variant {name!r}", closest(name, VARIANTS))
        check_device(self.device)
        for name in self.variants:
            if name not in suited(self.device):
                hint = f"on a CPU there are {', '.join(suited(self.device))}"
                raise LamplighterError(f"{name} needs CUDA, the device is {self.device!r}", hint)
        for name in self.profile:
            if not VARIANTS[name].graph:
                recorded = ", ".join(name for name, variant in VARIANTS.items() if variant.graph)
                raise LamplighterError(f"{name} records no steps that could be profiled", f"these do: {recorded}")


def suited(device: str) -> list[str]:
    """The variants that mean something on a device."""
    on_cuda = torch.device(device).type == "cuda"
    return [name for name, variant in VARIANTS.items() if on_cuda or not variant.needs_cuda]


@dataclass(frozen=True)
class Kernel:
    """A kernel in one replay of a recording: all its calls together."""

    name: str
    calls: int
    microseconds: float


@dataclass(frozen=True)
class Row:
    """One variant, measured or failed.

    Args:
        variant: its name.
        trials: networks trained together.
        each: steps per second of one trial.
        preparation: seconds until the first `WARMUP` steps were done, compilation and recording included.
        memory: bytes at most: of the device on CUDA; of the whole process on a CPU, None where the system does not say.
        error: why there is no measurement.
        log: the end of what the failed variant said.
        kernels: those that take longest, if they were asked for.
        recorded_steps: of each trial, in the recording that the kernels were counted in.
        profile_error: why there are no kernels.
    """

    variant: str
    trials: int
    each: float | None = None
    preparation: float | None = None
    memory: int | None = None
    error: str | None = None
    log: str | None = None
    kernels: tuple[Kernel, ...] = ()
    recorded_steps: int | None = None
    profile_error: str | None = None

    @property
    def total(self) -> float | None:
        """Steps per second of all trials together."""
        return None if self.each is None else self.each * self.trials


def speedup(rows: Sequence[Row], row: Row) -> float | None:
    """How many times as many steps as the plain loop; None if one of the two was not measured."""
    plain = next((other.total for other in rows if other.variant == PLAIN), None)
    return row.total / plain if plain and row.total else None


def measure(name: str, request: Request) -> Row:
    """One variant, in a process of its own that is ended when it takes too long."""
    # A session of its own, so that the compiler's processes can be ended with it.
    with subprocess.Popen(  # noqa: S603
        command(name, request), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            said, log = child.communicate(timeout=request.limit)
        except subprocess.TimeoutExpired:
            _end(child)
            return Row(name, trials_of(name, request), error=f"not finished in {request.limit:g} s, its limit")
        except BaseException:
            _end(child)
            raise
    if child.returncode:
        return Row(name, trials_of(name, request), error=_reason(child.returncode, log), log=log[-LOG:])
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return Row(**{**result, "kernels": tuple(Kernel(**kernel) for kernel in result["kernels"])})


def command(name: str, request: Request) -> list[str]:
    """What the process of one variant runs."""
    return [sys.executable, "-m", __name__, name, json.dumps(asdict(request))]


def trials_of(name: str, request: Request) -> int:
    """How many networks a variant trains together."""
    return request.trials if VARIANTS[name].method else 1


def _end(child: "subprocess.Popen[str]") -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _reason(code: int, log: str) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return (log.strip().splitlines() or [f"exit {code}"])[-1]


def measure_here(name: str, request: Request) -> Row:
    """Train twice, once to warm up, and report the second time."""
    device = torch.device(request.device)
    on_cuda = device.type == "cuda"
    data = images(max(10 * request.batch, 50_000 if on_cuda else 0)).to(device)
    began = time.perf_counter()
    train(name, request, data, steps=WARMUP)
    preparation = time.perf_counter() - began
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    each = train(name, request, data, steps=request.steps)
    memory = torch.cuda.max_memory_allocated(device) if on_cuda else _resident()
    found: dict[str, Any] = {}
    if name in request.profile:
        try:
            found = profile(name, request, data)
        except Exception as error:  # a profiler that fails must not lose the measurement
            found = {"profile_error": _in_one_line(error)}
    return Row(name, trials_of(name, request), each, preparation, memory, **found)


def _resident() -> int | None:
    """The most memory that this process has held, in bytes; None where the system does not tell."""
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def images(count: int) -> Dataset:
    """Random images in the shape of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return Dataset("random", pixels, labels, pixels[:100], labels[:100], (0.5,) * 3, (0.25,) * 3, 10)


def settings_of(name: str, request: Request, steps: int) -> Settings:
    """How the variant trains."""
    variant = VARIANTS[name]
    return Settings(
        steps=steps,
        batch=request.batch,
        precision=variant.precision,
        compiled=variant.compiled,
        autotune=variant.autotune,
        graph=variant.graph,
    )


def networks(name: str, request: Request) -> tuple[list[nn.Module], list[dict[str, Tensor] | None]]:
    """New networks, and random masks of the variant's density."""
    torch.manual_seed(0)
    device, density, count = torch.device(request.device), VARIANTS[name].density, trials_of(name, request)
    models: list[nn.Module] = [vgg16(10, width=request.width).to(device) for _ in range(count)]
    if density == 1:
        return models, [None] * count

    def masks(model: nn.Module) -> dict[str, Tensor]:
        weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
        return {name: torch.rand(p.shape, device=device) < density for name, p in weights.items()}

    return models, [masks(model) for model in models]


def train(name: str, request: Request, data: Dataset, steps: int) -> float:
    """Steps per second of each trial."""
    models, masks = networks(name, request)
    settings, method = settings_of(name, request, steps), VARIANTS[name].method
    if not method:
        return fit(models[0], data, settings, masks[0]).steps_per_second
    seeds = range(len(models))
    return fit_many(models, data, settings, masks, seeds, method=method)[0].steps_per_second


def profile(name: str, request: Request, data: Dataset) -> dict[str, Any]:
    """Where the time of one replay goes, kernel by kernel."""
    from lamplighter.training import recording  # noqa: PLC0415
    from lamplighter.training.numerics import numerics  # noqa: PLC0415
    from lamplighter.training.stack import Stack  # noqa: PLC0415
    from lamplighter.training.trial import trials  # noqa: PLC0415

    models, masks = networks(name, request)
    length = 4
    settings, seeds = settings_of(name, request, steps=1000), range(len(models))
    device = torch.device(request.device)
    with numerics(settings.precision, device), torch.cuda.device(device):
        if VARIANTS[name].method == "stacked":
            parts: Sequence[Any] = [Stack(models, data, settings, masks, seeds)]
        else:
            parts = trials(models, data, settings, masks, seeds)
        graph = recording.record(parts, length, device)
        recording.replay([graph], 3, length, None)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            recording.replay([graph], 1, length, None)
    events = [event for event in profiler.key_averages() if event.device_time_total]
    kernels = [Kernel(event.key, event.count, event.device_time_total) for event in events]
    kernels.sort(key=lambda kernel: -kernel.microseconds)
    return {"recorded_steps": length, "kernels": tuple(kernels[:KERNELS])}


def _in_one_line(error: Exception) -> str:
    if isinstance(error, LamplighterError):
        return error.message
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main() -> None:
    """What the process of one variant does: print the row, or why there is none, as JSON."""
    name, request = sys.argv[1], Request(**json.loads(sys.argv[2]))
    try:
        row = measure_here(name, request)
    except Exception as error:
        row = Row(name, trials_of(name, request), error=_in_one_line(error), log=traceback.format_exc()[-LOG:])
    print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
