"""`lamp estimate`: what a pruned network may be expected to gain on a processor, before anything is trained."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from lamplighter.cli.console import prose, stdout, write_json
from lamplighter.errors import LamplighterError

if TYPE_CHECKING:
    from rich.table import Table

    from lamplighter.runtime.estimating import Estimate

EXAMPLES = """[bold]Examples[/bold]
$ lamp estimate vgg16 --sparsity 0.99
$ lamp estimate resnet50 --size 224 --classes 1000 --sparsity 0.95 --method erk --json"""


def register(parent: typer.Typer, panel: str) -> None:
    """Add the command to `parent`, in the given section of its help."""
    parent.command("estimate", help=prose(estimate.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(estimate)


def estimate(
    model: Annotated[str, typer.Argument(help="A network of the experiments: vgg16, conv6, resnet20, resnet50, ...")],
    *,
    sparsity: Annotated[float, typer.Option(help="Fraction of the weights to remove.")],
    method: Annotated[str, typer.Option(help="How removal is shared out among layers.")] = "lamp",
    size: Annotated[int, typer.Option(min=1, help="Rows and columns of an image.")] = 32,
    classes: Annotated[int, typer.Option(min=1, help="Outputs of the last layer.")] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print every layer as JSON instead of a table.")] = False,
) -> None:
    """Say how many multiply-adds of a network are left when it is pruned, layer by layer.

    Of the untrained network: trained weights are shared out a little differently. Layers on large images count most,
    so that a network gains less than its sparsity promises.
    """
    import torch  # noqa: PLC0415

    from lamplighter.models import MODELS  # noqa: PLC0415
    from lamplighter.pruning import allocate  # noqa: PLC0415
    from lamplighter.runtime import estimating  # noqa: PLC0415

    if model not in MODELS:
        raise LamplighterError(f"there is no network {model!r}", f"choose of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = MODELS[model](classes).eval()
    budgets = allocate(network, sparsity=sparsity, method=method)
    found = estimating.estimate(network, torch.zeros(1, 3, size, size), budgets)
    if json:
        write_json({"density": found.density, "speedup": found.speedup, "layers": [asdict(x) for x in found.layers]})
        return
    stdout().print(_table(found, model))


def _table(found: "Estimate", model: str) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    caption = (
        f"{100 * found.density:.3g} % of the multiply-adds are left: about {found.speedup:.2g} times as fast as the "
        "best dense runtime, one image at a time. A rule of thumb; lamp bench sparse measures."
    )
    table = Table(title=model, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("layer", no_wrap=True)
    for column in ("weights", "kept", "multiply-adds", "left", "of all left"):
        table.add_column(column, justify="right", no_wrap=True)
    every = sum(layer.left for layer in found.layers) or 1
    for layer in found.layers:
        share = f"{100 * layer.left / every:.1f} %"
        table.add_row(
            layer.name, f"{layer.weights:,}", f"{layer.kept:,}", f"{layer.work:,}", f"{layer.left:,.0f}", share
        )
    return table
