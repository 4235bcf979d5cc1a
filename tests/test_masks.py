"""Masks: a mapping of boolean tensors that prints, combines, compares, saves and loads."""

import copy
import json
import os
import pickle
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import lamplighter as ll


def some(seed=0, density=0.4):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"stem.weight": (3, 2, 3, 3), "block.10.weight": (5, 7), "block.2.weight": (4, 4), "none": (0, 3)}
    return {name: torch.rand(shape, generator=generator) < density for name, shape in shapes.items()}


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))


def test_masks_are_a_mapping_of_boolean_tensors():
    flags = some()
    masks = ll.Masks(flags)
    assert isinstance(masks, Mapping)
    assert len(masks) == 4
    assert list(masks) == ["block.2.weight", "block.10.weight", "none", "stem.weight"]
    assert "stem.weight" in masks
    assert "stem" not in masks
    for name, mask in masks.items():
        assert mask.dtype == torch.bool
        assert torch.equal(mask, flags[name])


def test_what_was_looked_at_can_change_without_changing_the_masks():
    masks = ll.Masks(some())
    masks["stem.weight"].zero_()
    assert masks == ll.Masks(some())


def test_the_tensors_masks_were_made_of_can_change_without_changing_them():
    flags = some()
    masks = ll.Masks(flags)
    flags["stem.weight"].zero_()
    assert masks == ll.Masks(some())


def test_counts_and_densities():
    flags = some()
    masks = ll.Masks(flags)
    kept = {name: int(mask.sum()) for name, mask in flags.items()}
    total = sum(mask.numel() for mask in flags.values())
    assert masks.kept == kept
    assert masks.shapes["stem.weight"] == (3, 2, 3, 3)
    assert masks.total == total
    assert masks.total_kept == sum(kept.values())
    assert masks.density == sum(kept.values()) / total
    assert masks.sparsity == pytest.approx(1 - masks.density)
    densities = masks.densities()
    assert set(densities) == set(flags)
    assert all(densities[name] == kept[name] / flags[name].numel() for name in flags if flags[name].numel())


def test_the_table_tells_shape_kept_and_density_of_each_layer_and_the_total():
    masks = ll.Masks(some())
    text = str(masks)
    lines = text.splitlines()
    for name in masks:
        (line,) = [line for line in lines if name in line]
        assert str(masks.kept[name]) in line
        assert all(str(length) in line for length in masks.shapes[name])
    assert str(masks.total_kept) in lines[-1]
    assert "total" in lines[-1].lower()
    positions = [next(i for i, line in enumerate(lines) if name in line) for name in masks]
    assert positions == sorted(positions)


def test_repr_is_short_and_html_is_a_table():
    masks = ll.Masks(some())
    assert "Masks" in repr(masks) or "total" in repr(masks).lower()
    html = masks._repr_html_()
    assert "<table" in html
    assert all(name in html for name in masks)


def test_html_escapes_names():
    html = ll.Masks({"<b>&": torch.ones(2, dtype=torch.bool)})._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_masks_of_nothing_print():
    assert isinstance(str(ll.Masks({"none": torch.zeros(0, 2, dtype=torch.bool)})), str)


def test_and_keeps_what_both_keep():
    one, two = some(1), some(2)
    both = ll.Masks(one) & ll.Masks(two)
    assert all(torch.equal(both[name], one[name] & two[name]) for name in one)


def test_and_of_masks_that_do_not_belong_together_is_an_error():
    one = ll.Masks(some())
    with pytest.raises(ll.LamplighterError, match="stem"):
        one & ll.Masks({name: mask for name, mask in some().items() if name != "stem.weight"})
    with pytest.raises(ll.LamplighterError, match="stem"):
        one & ll.Masks(some() | {"stem.weight": torch.ones(3, 3, dtype=torch.bool)})


def test_equality_is_by_names_shapes_and_entries():
    assert ll.Masks(some()) == ll.Masks(some())
    assert ll.Masks(some()) != ll.Masks(some(1))
    assert ll.Masks(some()) != ll.Masks({name: mask for name, mask in some().items() if name != "none"})
    flat = {name: mask.flatten() for name, mask in some().items()}
    assert ll.Masks(some()) != ll.Masks(flat)
    assert ll.Masks(some()) != 3


def test_apply_zeroes_with_positive_zeros_and_binds():
    model = net()
    before = model[0].weight.clone()
    masks = ll.Masks({"0.weight": before > 0, "2.weight": torch.ones(3, 6, dtype=torch.bool)})
    masks.apply(model)
    assert torch.equal(model[0].weight, before.clamp(min=0))
    assert not model[0].weight.signbit().any()
    masks.hold(torch.optim.SGD(model.parameters(), lr=0.1))
    masks.release()


def test_apply_takes_a_mapping_and_other_memory_formats():
    flags = torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    weight = torch.ones(4, 3, 3, 3).to(memory_format=torch.channels_last)
    ll.Masks({"a": flags}).apply({"a": weight})
    assert torch.equal(weight, flags.float())


def test_save_and_load_round_trip(tmp_path):
    masks = ll.Masks(some())
    masks.save(tmp_path / "masks.safetensors")
    loaded = ll.Masks.load(tmp_path / "masks.safetensors")
    assert loaded == masks
    assert loaded.shapes == masks.shapes
    assert list(loaded) == list(masks)
    masks.save(str(tmp_path / "again.safetensors"))
    assert ll.Masks.load(str(tmp_path / "again.safetensors")) == masks


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5), st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_any_shapes_round_trip(tmp_path_factory, shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    masks = ll.Masks({f"l.{place}": torch.rand(shape, generator=generator) < 0.5 for place, shape in enumerate(shapes)})
    path = tmp_path_factory.mktemp("masks") / "m.safetensors"
    masks.save(path)
    assert ll.Masks.load(path) == masks


def test_a_file_holds_one_bit_per_weight(tmp_path):
    path = tmp_path / "masks.safetensors"
    ll.Masks({"a": torch.ones(1000, 800, dtype=torch.bool)}).save(path)
    assert path.stat().st_size < 100_000 + 1000


def test_loaded_masks_apply_to_the_model_they_came_from(tmp_path):
    model, fresh = net(), net()
    masks = ll.prune(model, 0.6)
    masks.save(tmp_path / "masks.safetensors")
    ll.Masks.load(tmp_path / "masks.safetensors").apply(fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))


def test_saving_replaces_the_file_at_once_and_leaves_nothing_else(tmp_path):
    path, old = tmp_path / "masks.safetensors", tmp_path / "old"
    ll.Masks(some(1)).save(path)
    content = path.read_bytes()
    os.link(path, old)
    ll.Masks(some(2)).save(path)
    # A file that is written in place would have changed under its other name too.
    assert old.read_bytes() == content
    assert ll.Masks.load(path) == ll.Masks(some(2))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["masks.safetensors", "old"]


def test_a_save_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "masks.safetensors"
    ll.Masks(some(1)).save(path)

    def fail(*arguments, **options):
        raise OSError("no space left on device")

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises((OSError, ll.LamplighterError)):
        ll.Masks(some(2)).save(path)
    monkeypatch.undo()
    assert ll.Masks.load(path) == ll.Masks(some(1))
    assert [entry.name for entry in tmp_path.iterdir()] == ["masks.safetensors"]


def damaged_files(whole):
    """Bytes that are no masks, by what is wrong with them."""
    yield "empty", b""
    yield "noise", bytes(range(256)) * 10
    yield "truncated header", whole[:20]
    yield "truncated data", whole[:-1]
    yield "longer", whole + b"\0"
    yield "header length", (2**40).to_bytes(8, "little") + whole[8:]
    yield "json", whole[:8] + b"{" * (len(whole) - 8)


def test_damaged_files_are_refused_by_name(tmp_path):
    path = tmp_path / "masks.safetensors"
    ll.Masks(some()).save(path)
    for kind, content in damaged_files(path.read_bytes()):
        broken = tmp_path / f"{kind}.safetensors"
        broken.write_bytes(content)
        with pytest.raises(ll.LamplighterError, match=kind):
            ll.Masks.load(broken)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "masks.safetensors"
    ll.Masks({"a": torch.ones(3, 5, dtype=torch.bool), "b": torch.zeros(9, dtype=torch.bool)}).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ll.LamplighterError):
            ll.Masks.load(path)


def test_a_file_of_ordinary_weights_is_no_masks(tmp_path):
    save_file({"a": torch.ones(3, 3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ll.LamplighterError, match="weights"):
        ll.Masks.load(tmp_path / "weights.safetensors")
    save_file({"a": torch.ones(3, dtype=torch.uint8)}, tmp_path / "bytes.safetensors")
    with pytest.raises(ll.LamplighterError, match="bytes"):
        ll.Masks.load(tmp_path / "bytes.safetensors")


def test_a_shape_that_does_not_fit_the_packed_bits_is_refused(tmp_path):
    path = tmp_path / "masks.safetensors"
    ll.Masks({"a": torch.ones(40, 40, dtype=torch.bool)}).save(path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + size]
    wrong = header.replace(b"40", b"41", 1)
    assert wrong != header
    path.write_bytes(whole[:8] + wrong + whole[8 + size :])
    with pytest.raises(ll.LamplighterError):
        ll.Masks.load(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises((ll.LamplighterError, FileNotFoundError), match="nowhere"):
        ll.Masks.load(tmp_path / "nowhere.safetensors")


def test_copies_and_pickles_are_equal_and_belong_to_no_model():
    model = net()
    masks = ll.prune(model, 0.5)
    masks.hold(torch.optim.SGD(model.parameters(), lr=0.1))
    for other in (copy.copy(masks), copy.deepcopy(masks), pickle.loads(pickle.dumps(masks))):
        assert other == masks
        with pytest.raises(ll.LamplighterError, match="apply"):
            other.hold(torch.optim.SGD(model.parameters(), lr=0.1))


SHAPES = [[9], [7], [2, 3], [-1, 8], [-8, -1], [8.0], [[8]], ["8"], [2**33, 2**33], [2**63], [10**30], 8, None, "8", {}]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_damaged_shapes_are_refused(shape, tmp_path):
    path = tmp_path / "masks.safetensors"
    ll.Masks({"a": torch.ones(8, dtype=torch.bool)}).save(path)
    with safe_open(path, framework="pt") as file:
        packed, metadata = file.get_tensor("a"), file.metadata()
    described = json.loads(metadata["lamplighter-masks"])
    assert described == {"version": 1, "shapes": {"a": [8]}}
    for shapes in ({"a": shape}, {"b": [8]}, {"a": [8], "b": [8]}, [shape], shape):
        save_file({"a": packed}, path, {"lamplighter-masks": json.dumps(described | {"shapes": shapes})})
        with pytest.raises(ll.LamplighterError):
            ll.Masks.load(path)


def test_the_same_masks_give_the_same_bytes(tmp_path):
    names = [f"layer.{place}" for place in range(20)]
    written = set()
    for order in (names, names[::-1]):
        ll.Masks({name: torch.ones(9, dtype=torch.bool) for name in order}).save(tmp_path / "masks.safetensors")
        written.add((tmp_path / "masks.safetensors").read_bytes())
    assert len(written) == 1
