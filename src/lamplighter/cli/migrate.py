"""`lamp migrate`: take over what another tool has pruned."""

from pathlib import Path
from typing import Annotated

import typer

from lamplighter.cli.console import prose, stdout, write_json

EXAMPLES = """[bold]Examples[/bold]
$ lamp migrate pruned.ckpt -o pruned.safetensors   [dim]# weight_orig and weight_mask, of Lightning or torch[/dim]
$ lamp migrate sparse-model -o dense-model         [dim]# a folder of compressed-tensors bitmasks[/dim]"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to `app`, in the given section of its help."""
    app.command("migrate", help=prose(migrate.__doc__ or ""), epilog=EXAMPLES, rich_help_panel=panel)(migrate)


def migrate(
    source: Annotated[Path, typer.Argument(metavar="IN", help="What another tool has pruned: a file or a folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")],
    *,
    masks: Annotated[
        Path | None, typer.Option(help="The file of masks to write.", show_default="beside OUT: OUT.masks.safetensors")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Write what another tool has pruned as an ordinary checkpoint, with its masks beside it.

    Reads the masks of torch.nn.utils.prune, in files of torch and of Lightning, and the sparse files of
    compressed-tensors. Where a checkpoint says nothing of masks, what is not zero is kept. Not a bit is lost.
    """
    from lamplighter.migration.writing import migrate as carry_out  # noqa: PLC0415

    done = carry_out(source, out, masks=masks, force=force)
    found = done.masks
    if json:
        numbers = {"layers": len(found), "weights": found.total, "kept": found.total_kept, "sparsity": found.sparsity}
        write_json({"out": str(done.out), "masks": str(done.masks_file), "kinds": done.kinds, **numbers})
        return
    for kind, count in done.kinds.items():
        stdout().print(f"{kind}: {count:,} tensor{'s' if count != 1 else ''}", highlight=False)
    print(found)
    stdout().print(f"{done.out}, and the masks in {done.masks_file}", highlight=False, soft_wrap=True, markup=False)
