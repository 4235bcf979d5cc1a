"""Training steps per second of VGG-16 on images of 32x32: step by step, recorded, and several trials at once.

    PYTHONPATH=src python benchmarks/train_speed.py speed.json

Random images stand in for CIFAR-10, which changes no speed. Each variant runs in a process of its own, so that one that
fails, or hangs, costs only itself. `--profile NAME` adds the kernels on which that variant spends its time.
`--device cpu --width 4 --steps 4 --batch 8` runs what a machine without CUDA can, to see that the script works.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamplighter.data.dataset import Dataset
from lamplighter.models.vgg import vgg16
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings
from lamplighter.training.trials import fit_many


@dataclass(frozen=True)
class Variant:
    """One way to train: how many trials, together how, with which settings, at which density."""

    trials: int = 1
    method: str = ""
    precision: str = "bf16"
    compiled: bool = True
    autotune: bool = False
    graph: bool = True
    density: float = 1.0


VARIANTS: dict[str, Variant] = {
    "loop-fp32": Variant(precision="fp32", compiled=False, graph=False),
    "loop-tf32": Variant(precision="tf32", compiled=False, graph=False),
    "graph-tf32": Variant(precision="tf32"),
    "graph-bf16": Variant(),
    "branches-5": Variant(trials=5, method="branches"),
    "streams-5": Variant(trials=5, method="streams"),
    "stacked-5": Variant(trials=5, method="stacked"),
    "branches-5-sparse": Variant(trials=5, method="branches", density=0.0115),
    "graph-bf16-autotuned": Variant(autotune=True),
    "branches-5-autotuned": Variant(trials=5, method="branches", autotune=True),
    "branches-10": Variant(trials=10, method="branches"),
}


def main() -> None:
    """Run the chosen variants one after another, print a table, write the numbers."""
    options = parse()
    if options.one is not None:
        print(json.dumps(measure(options.one, options)))
        return
    results: dict[str, Any] = {"machine": machine(options.device), "batch": options.batch, "variants": {}}
    print(f"{results['machine']['device']}, torch {torch.__version__}, batch {options.batch}", flush=True)
    for name in options.variants or VARIANTS:
        result = in_process(name, options)
        results["variants"][name] = result
        if "error" in result:
            print(f"{name:24} failed: {result['error']}", flush=True)
        else:
            rates = f"{result['total']:8.0f} steps/s in all, {result['each']:7.0f} each"
            print(f"{name:24} {rates}; {result['preparation']:.0f} s to prepare", flush=True)
        write(Path(options.out), results)
    for name, result in results["variants"].items():
        if "kernels" in result:
            print(f"\n{name}, one recording of {result['recorded_steps']} steps of each trial:")
            for kernel in result["kernels"]:
                print(f"  {kernel['microseconds']:9.1f} us {kernel['calls']:5}x  {kernel['name'][:110]}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="JSON file to write")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="which to run; all if not given")
    parser.add_argument("--profile", nargs="*", default=[], choices=VARIANTS, help="which to profile as well")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=180, help="limit of each variant")
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def machine(device: str) -> dict[str, str]:
    """What was measured on."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": cudnn()}


def cudnn() -> str:
    return str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else "none"


def write(path: Path, results: Mapping[str, Any]) -> None:
    """After every variant, so that nothing is lost when time runs out."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(path)


def in_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The measurement of one variant, or its error."""
    numbers = ("steps", "batch", "width", "device")
    command = [sys.executable, __file__, options.out, "--one", name]
    command += [f"--{number}={getattr(options, number)}" for number in numbers]
    if name in options.profile:
        command += ["--profile", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished in {options.seconds:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit {done.returncode}", "log": done.stderr[-6000:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train twice, once to warm up, and report the second time."""
    variant = VARIANTS[name]
    device = torch.device(options.device)
    data = synthetic(max(10 * options.batch, 50_000 if device.type == "cuda" else 0)).to(device)
    began = time.perf_counter()
    # A few steps first, so that compilation and the choice of kernels do not count in the plain loop either.
    run(variant, data, options, steps=10)
    warm = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    each = run(variant, data, options, steps=options.steps)
    result = {
        **asdict(variant),
        "steps": options.steps,
        "each": each,
        "total": each * variant.trials,
        "preparation": warm,
        "memory": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
    }
    if options.profile and device.type == "cuda" and variant.graph:
        try:
            result |= profile(variant, data, options)
        except Exception:  # a profiler that fails must not lose the measurement
            traceback.print_exc()
    return result


def synthetic(count: int) -> Dataset:
    """Random images in the shape of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return Dataset("synthetic", pixels, labels, pixels[:100], labels[:100], (0.5,) * 3, (0.25,) * 3, 10)


def settings_of(variant: Variant, options: argparse.Namespace, steps: int) -> Settings:
    on_cuda = options.device == "cuda"
    return Settings(
        steps=steps,
        batch=options.batch,
        precision=variant.precision,
        compiled=variant.compiled and on_cuda,
        autotune=variant.autotune,
        graph=variant.graph and on_cuda,
    )


def networks(variant: Variant, options: argparse.Namespace) -> tuple[list[nn.Module], list[dict[str, Tensor] | None]]:
    """New networks, and random masks of the variant's density."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    models: list[nn.Module] = [vgg16(10, width=options.width).to(device) for _ in range(variant.trials)]
    if variant.density == 1:
        return models, [None] * variant.trials

    def masks(model: nn.Module) -> dict[str, Tensor]:
        weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
        return {name: torch.rand(p.shape, device=device) < variant.density for name, p in weights.items()}

    return models, [masks(model) for model in models]


def run(variant: Variant, data: Dataset, options: argparse.Namespace, steps: int) -> float:
    """Steps per second of each trial."""
    models, masks = networks(variant, options)
    settings = settings_of(variant, options, steps)
    if variant.trials == 1:
        return fit(models[0], data, settings, masks[0]).steps_per_second
    seeds = range(variant.trials)
    return fit_many(models, data, settings, masks, seeds, method=variant.method)[0].steps_per_second


def profile(variant: Variant, data: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Where the time of one replay goes, kernel by kernel."""
    from lamplighter.training import recording  # noqa: PLC0415
    from lamplighter.training.numerics import numerics  # noqa: PLC0415
    from lamplighter.training.stack import Stack  # noqa: PLC0415
    from lamplighter.training.trial import trials  # noqa: PLC0415

    models, masks = networks(variant, options)
    settings = settings_of(variant, options, steps=1000)
    device, seeds = torch.device(options.device), list(range(variant.trials))
    with numerics(settings.precision, device):
        if variant.method == "stacked":
            parts: list[Any] = [Stack(models, data, settings, masks, seeds)]
        else:
            parts = list(trials(models, data, settings, masks, seeds))
        length = 4
        graph = recording.record(parts, length, device)
        recording.replay([graph], 3, length, None)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            recording.replay([graph], 1, length, None)
    kernels = [
        {"name": event.key, "calls": event.count, "microseconds": event.device_time_total}
        for event in profiler.key_averages()
        if event.device_time_total
    ]
    kernels.sort(key=lambda kernel: -kernel["microseconds"])
    total = sum(kernel["microseconds"] for kernel in kernels)
    return {"recorded_steps": length, "kernel_microseconds": total, "kernels": kernels[:40]}


if __name__ == "__main__":
    main()
