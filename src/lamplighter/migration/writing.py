"""Writing what another tool has pruned as an ordinary dense checkpoint, with its masks beside it."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.output import safetensors_name
from lamplighter.checkpoint.staging import check_place, staged
from lamplighter.checkpoint.torch_files import in_order
from lamplighter.checkpoint.writing import Described, ShardWriter, nbytes
from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks
from lamplighter.migration.forms import BITMASK, BITMASK_24, PLAIN, Form, recognise
from lamplighter.migration.reading import add_masks, found_masks, open_checkpoint

_CONFIG = "config.json"
# What a config says of compressed-tensors beside how weights are quantised.
_ASIDE = {"quant_method", "version", "transform_config", "format", "quantization_status"}


@dataclass(frozen=True)
class Migration:
    """What was written.

    Args:
        out: the dense checkpoint.
        masks_file: the file of masks.
        masks: the masks themselves.
        kinds: how many tensors there were of each kind of storage.
    """

    out: Path
    masks_file: Path
    masks: Masks
    kinds: dict[str, int]


def migrate(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    masks: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Migration:
    """Write a checkpoint that another tool has pruned as dense safetensors, and its masks: see `read_sparse`.

    A folder becomes a folder that loads as any other: its other files are carried over, and its config no longer says
    that weights are stored sparse. One tensor at a time is in memory, and the masks. All or nothing, never in place.

    Args:
        src: a checkpoint: safetensors, a file of torch or Lightning's, or a folder of either.
        dst: the file, or folder, to write.
        masks: the file of masks to write; `OUT.masks.safetensors` beside it, if not given.
        force: replace what is there.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weights = {"fc.weight_orig": torch.ones(2, 2), "fc.weight_mask": torch.eye(2)}
    ...     save_file(weights, f"{folder}/pruned.safetensors")
    ...     done = migrate(f"{folder}/pruned.safetensors", f"{folder}/dense.safetensors")
    ...     print(done.masks.kept, done.kinds, done.masks_file.name)
    {'fc.weight': 2} {'torch.nn.utils.prune': 1, 'plain': 0} dense.masks.safetensors
    """
    checkpoint, out = open_checkpoint(src), Path(dst)
    masks_file = out.with_name(f"{out.name.removesuffix('.safetensors')}.masks.safetensors") if masks is None else masks
    masks_file = Path(masks_file)
    _check_places(checkpoint, out, masks_file, force=force)
    forms = recognise(list(checkpoint))
    outlines = {form.name: _outline(checkpoint, form) for form in forms}
    needed = sum(nbytes(dtype, shape) for _, dtype, shape in outlines.values())
    packed: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with staged(out, folder=checkpoint.files.folder, force=force, needed=needed) as part:
        for file, members in _shards(checkpoint, forms).items():
            path = part / file if checkpoint.files.folder else part
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = next(s.metadata for s in checkpoint.shards if safetensors_name(s.file) == file)
            described = [outlines[form.name] for form in members]
            with ShardWriter(path, described, metadata or {"format": "pt"}) as writer:
                for form in members:
                    weight, kept = form.decode(checkpoint.__getitem__)
                    add_masks(packed, shapes, form, weight, kept)
                    writer.write(form.name, in_order(weight).numpy().data)
        if checkpoint.files.folder:
            _write_rest(checkpoint, forms, part, needed)
        found = found_masks(packed, shapes, str(checkpoint.path))
        checkpoint.check_unchanged()
        found.save(masks_file)
    kinds = Counter(form.kind for form in forms)
    plain = kinds.pop(PLAIN, 0)
    return Migration(out, masks_file, found, {**kinds, PLAIN: plain})


def _check_places(checkpoint: Checkpoint, out: Path, masks_file: Path, *, force: bool) -> None:
    folder = checkpoint.files.folder
    if not folder and out.suffix != ".safetensors":
        raise LamplighterError(f"{out} is no .safetensors file by its name", f"write to {out.stem}.safetensors")
    same = [path for path in (out, masks_file) if os.path.realpath(path) == os.path.realpath(checkpoint.path)]
    if same:
        raise LamplighterError(f"{same[0]} is what is read", "choose another name: nothing is written in place")
    check_place(out, folder=folder, force=force)
    check_place(masks_file, folder=False, force=force)


def _outline(checkpoint: Checkpoint, form: Form) -> Described:
    entry = checkpoint.entries[form.parts[0]]
    sparse = form.kind in (BITMASK, BITMASK_24)
    return form.name, entry.dtype, form.shape(checkpoint.__getitem__) if sparse else entry.shape


def _shards(checkpoint: Checkpoint, forms: list[Form]) -> dict[str, list[Form]]:
    """What each file is to hold: every tensor stays in the file that its values are in."""
    found: dict[str, list[Form]] = {}
    for form in forms:
        found.setdefault(safetensors_name(checkpoint.entries[form.parts[0]].file), []).append(form)
    return found


def _write_rest(checkpoint: Checkpoint, forms: list[Form], part: Path, total: int) -> None:
    """The files that are carried over, the config, and the index."""
    files = checkpoint.files
    for path in files.others:
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        if str(path) == _CONFIG and any(form.kind != PLAIN for form in forms):
            (part / path).write_text(json.dumps(plain_config(files.config), indent=2) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(files.root / path, part / path)
    if files.index is not None:
        stem = safetensors_name(files.index.removesuffix(".index.json"))
        places = {form.name: safetensors_name(checkpoint.entries[form.parts[0]].file) for form in forms}
        content = {"metadata": {"total_size": total}, "weight_map": places}
        (part / f"{stem}.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a model whose weights are stored sparse no more; how they are quantised stays in it."""
    plain = {key: value for key, value in config.items() if key != "sparsity_config"}
    for key in ("quantization_config", "compression_config"):
        if isinstance(plain.get(key), dict) and "sparsity_config" in plain[key]:
            rest = {name: value for name, value in plain[key].items() if name != "sparsity_config"}
            if set(rest) <= _ASIDE:
                del plain[key]
            else:
                plain[key] = rest
    return plain
