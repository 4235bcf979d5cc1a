"""verify: what is the original pruned passes, packed or not; whatever else is found and named."""

import json
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lamplighter as ll
from lamplighter.checkpoint.packed_codec import CHUNK
from packed_samples import write_folder


def weights(seed=0):
    """Matrices, a norm, an embedding, and experts in one tensor."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=generator).to(dtype)

    return {
        "layers.0.fc.weight": normal(64, 80),
        "layers.0.norm.weight": normal(80),
        "layers.1.fc.weight": normal(90, 64, dtype=torch.float32),
        "layers.1.experts.down_proj": normal(3, 50, 40),
        "embed_tokens.weight": normal(100, 64),
    }


@pytest.fixture
def original(tmp_path):
    """The original's path."""
    save_file(weights(), tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def prune(original, name="b", **options):
    """The path of the original pruned."""
    path = original.with_name(f"{name}.safetensors")
    ll.prune_checkpoint(original, path, **({"sparsity": 0.8} | options))
    return path


def altered(path, change, name="c"):
    """The path of a checkpoint whose tensors were changed, its metadata not."""
    tensors = load_file(path)
    change(tensors)
    with safe_open(path, "pt") as file:
        save_file(tensors, path.with_name(f"{name}.safetensors"), metadata=file.metadata())
    return path.with_name(f"{name}.safetensors")


def packed(path):
    target = path.with_name(f"{path.stem}-packed.safetensors")
    ll.pack(path, target)
    return target


@pytest.mark.parametrize("options", [{}, {"method": "erk"}, {"pattern": "2:4", "sparsity": 0.5}, {"exclude": "*.1.*"},
                                     {"max_density": {"layers.0.fc.weight": 0.1}}], ids=str)  # fmt: skip
def test_what_prune_wrote_passes_packed_or_not(original, options):
    pruned = prune(original, **options)
    report = ll.prune_checkpoint(original, None, dry_run=True, **({"sparsity": 0.8} | options))
    for path in (pruned, packed(pruned)):
        verdict = ll.verify(path, original)
        assert verdict.ok, str(verdict)
        assert verdict.removed == report.total - report.kept
        assert verdict.planned == {layer.name: layer.kept for layer in report.layers}
        assert verdict.layers_as_planned == len(report.layers)
        assert verdict.entries == sum(weight.numel() for weight in weights().values())
        assert verdict.differences == []
        assert verdict.different == 0


def test_a_value_that_differs_is_named_with_its_place(original):
    def change(tensors):
        weight = tensors["layers.1.fc.weight"]
        place = weight.flatten().nonzero()[3]
        weight.view(-1)[place] *= 2
        weight.view(-1)[weight.flatten().nonzero()[9]] += 1

    path = altered(prune(original), change)
    after, before = load_file(path)["layers.1.fc.weight"], load_file(original)["layers.1.fc.weight"]
    first = ((after != 0) & (after != before)).nonzero()[0].tolist()
    for each in (path, packed(path)):
        verdict = ll.verify(each, original)
        assert not verdict.ok
        (difference,) = verdict.differences
        assert (difference.tensor, list(difference.index)) == ("layers.1.fc.weight", first)
        assert verdict.different == 2
        assert "2 entries are neither zero nor the original's" in str(verdict)


def test_one_kept_weight_less_or_more_is_noticed(original):
    pruned = prune(original)
    kept = int(load_file(pruned)["layers.0.fc.weight"].count_nonzero())

    def less(tensors):
        weight = tensors["layers.0.fc.weight"].view(-1)
        weight[weight.nonzero()[0]] = 0

    def more(tensors):
        weight = tensors["layers.0.fc.weight"].view(-1)
        place = (weight == 0).nonzero()[0]
        weight[place] = load_file(original)["layers.0.fc.weight"].view(-1)[place]

    for change, found in ((less, kept - 1), (more, kept + 1)):
        verdict = ll.verify(altered(pruned, change), original)
        said = [(each.tensor, each.why) for each in verdict.differences]
        assert ("layers.0.fc.weight", f"{found:,} weights are kept, planned were {kept:,}") in said
        assert said[-1][0] == "all layers"
        assert verdict.layers_as_planned == len(verdict.planned) - 1


def test_an_expert_that_keeps_another_number_is_named(original):
    def move(tensors):
        """One weight less of the last expert, one more of the first."""
        stack, before = tensors["layers.1.experts.down_proj"], load_file(original)["layers.1.experts.down_proj"]
        place = tuple((stack[0] == 0).nonzero()[0].tolist())
        stack[0][place] = before[0][place]
        stack[2][tuple(stack[2].nonzero()[0].tolist())] = 0

    verdict = ll.verify(altered(prune(original), move), original)
    expected = ["layers.1.experts.down_proj[0]", "layers.1.experts.down_proj[2]"]
    assert [each.tensor for each in verdict.differences] == expected


def test_a_layer_that_was_not_to_be_pruned_must_be_whole(original):
    def change(tensors):
        tensors["embed_tokens.weight"][7, 5] = 0

    verdict = ll.verify(altered(prune(original), change), original)
    (difference,) = verdict.differences
    assert (difference.tensor, difference.index) == ("embed_tokens.weight", (7, 5))
    assert "was not to be pruned" in difference.why


def test_a_removed_weight_must_be_a_positive_zero(original):
    def change(tensors):
        weight = tensors["layers.0.fc.weight"].view(-1)
        weight[(weight == 0).nonzero()[0]] = -0.0

    verdict = ll.verify(altered(prune(original), change), original)
    assert verdict.different == 1
    assert verdict.differences[0].tensor == "layers.0.fc.weight"


def test_zeros_of_the_original_count_as_kept_or_removed(tmp_path):
    tensors = weights()
    tensors["layers.0.fc.weight"][:60] = 0
    save_file(tensors, tmp_path / "a.safetensors")
    pruned = prune(tmp_path / "a.safetensors", sparsity=0.3, method="uniform")
    verdict = ll.verify(pruned, tmp_path / "a.safetensors")
    assert verdict.ok, str(verdict)
    tally = verdict.tallies["layers.0.fc.weight"]
    assert tally.nonzero < verdict.planned["layers.0.fc.weight"]
    assert verdict.zero_in_both >= 60 * 80


def test_tensors_that_are_missing_added_or_of_another_shape_are_named(original):
    def change(tensors):
        del tensors["embed_tokens.weight"]
        tensors["new"] = torch.ones(3)
        tensors["layers.0.norm.weight"] = tensors["layers.0.norm.weight"].view(8, 10)
        tensors["layers.1.fc.weight"] = tensors["layers.1.fc.weight"].half()

    verdict = ll.verify(altered(original, change), original)
    assert {each.tensor: each.why for each in verdict.differences} == {
        "embed_tokens.weight": "it is missing",
        "new": "the original does not have it",
        "layers.0.norm.weight": "it is BF16 of shape [8, 10], was BF16 of [80]",
        "layers.1.fc.weight": "it is F16 of shape [90, 64], was F32 of [90, 64]",
    }


def test_without_metadata_any_tensor_may_have_lost_entries(original):
    tensors = load_file(original)
    ll.prune(tensors, sparsity=0.5)
    save_file(tensors, original.with_name("b.safetensors"))
    verdict = ll.verify(original.with_name("b.safetensors"), original)
    assert verdict.ok
    assert verdict.planned == {}
    assert verdict.removed == verdict.entries - verdict.nonzero


@pytest.mark.parametrize("record", ["", "[]", "3", '{"sparsity": 0.5, "method": "mine:alone"}', '{"sparsity": null}'])
def test_metadata_that_say_little_are_no_obstacle(original, record):
    tensors = load_file(original)
    save_file(tensors, original.with_name("b.safetensors"), metadata={"lamplighter": record})
    assert ll.verify(original.with_name("b.safetensors"), original).ok


@pytest.mark.parametrize("pattern", [None, "2:4", "row"])
def test_nothing_that_metadata_name_is_imported_or_called(original, monkeypatch, pattern):
    traces = original.with_name("traces")
    said = f"open({str(traces)!r}, 'a').write('here')"
    original.with_name("evilmod.py").write_text(f"{said}\ndef boom(*given):\n    {said}\n")
    monkeypatch.syspath_prepend(original.parent)
    record = {"sparsity": 0.5, "method": "evilmod:boom", "pattern": pattern}
    path = original.with_name("b.safetensors")
    save_file(load_file(original), path, metadata={"lamplighter": json.dumps(record)})
    verdict = ll.verify(path, original)
    assert "evilmod" not in sys.modules
    assert not traces.exists()
    assert verdict.ok
    assert verdict.unchecked == "the method 'evilmod:boom' is none of lamp, global, uniform, uniform+, er, erk"
    assert str(verdict).endswith(f"; budgets not checked: {verdict.unchecked}")


def test_a_verdict_is_true_if_all_is_well(original):
    pruned = prune(original)
    assert ll.verify(pruned, original)
    assert not ll.verify(original, pruned)


UNREADABLE = "what the checkpoint says of how it was pruned cannot be read"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"method": "lamp", "sparsity": "0.5"}, "sparsity is '0.5'"),
        ({"method": "lamp", "sparsity": 7}, "sparsity is 7"),
        ({"method": "lamp", "sparsity": 0.5, "include": 3}, ""),
        ({"method": "lamp", "sparsity": 0.5, "include": "absent"}, ""),
        ({"method": "lamp", "sparsity": 0.5, "max_density": [3]}, ""),
        ({"method": "lamp", "sparsity": 0.5, "densities": {"*": {}}}, ""),
        ({"method": "lamp", "sparsity": 0.5, "pattern": "9"}, ""),
        ({"method": ["lamp"], "sparsity": 0.5}, "the method that is named is none of lamp"),
        ({"sparsity": 0.5}, "the method that is named is none of lamp"),
    ],
    ids=str,
)
def test_what_cannot_be_decided_again_is_said(original, record, why):
    path = original.with_name("b.safetensors")
    save_file(load_file(original), path, metadata={"lamplighter": json.dumps(record)})
    verdict = ll.verify(path, original)
    assert verdict.ok
    assert verdict.planned == {}
    assert verdict.unchecked
    assert why in verdict.unchecked
    assert verdict.as_data()["budgets_not_checked"] == verdict.unchecked


def test_without_a_record_or_the_dense_original_it_is_said_that_budgets_are_not_checked(original):
    pruned = prune(original)
    assert ll.verify(original, original).unchecked == "the checkpoint does not say how it was pruned"
    assert ll.verify(pruned, packed(original)).unchecked == "the original is packed"
    assert ll.verify(pruned, original).unchecked is None
    assert ll.verify(pruned, original).as_data()["budgets_not_checked"] is None


def twice_pruned(original, earlier):
    """What was pruned to 0.5, and pruned again, other layers; `earlier` says what is recorded of the first time."""
    first = prune(original, "first", sparsity=0.5, include=["layers.0.fc.weight"])
    second = prune(first, "second", sparsity=0.6, exclude=["layers.0.*"])
    with safe_open(first, "pt") as file:
        before = json.loads(file.metadata()["lamplighter"])
    with safe_open(second, "pt") as file:
        metadata = file.metadata()
    record = json.loads(metadata["lamplighter"]) | {"earlier": earlier(before)}
    path = original.with_name("twice.safetensors")
    save_file(load_file(second), path, metadata=metadata | {"lamplighter": json.dumps(record)})
    return first, path


@pytest.mark.parametrize("earlier", [lambda before: [before], lambda before: ["?"]], ids=["known", "unknown"])
def test_what_was_pruned_before_passes_without_its_budgets(original, earlier):
    first, twice = twice_pruned(original, earlier)
    verdict = ll.verify(twice, original)
    assert verdict.ok, str(verdict)
    assert "pruned before" in verdict.unchecked
    assert verdict.planned == {}
    verdict = ll.verify(twice, first)  # of what it was made from, they can be decided
    assert verdict.ok, str(verdict)
    assert verdict.unchecked is None
    assert len(verdict.planned) == 4


def test_of_what_was_pruned_before_layers_that_were_never_chosen_must_be_whole(original):
    def change(tensors):
        tensors["embed_tokens.weight"][7, 5] = 0

    _, twice = twice_pruned(original, lambda before: [before])
    (difference,) = ll.verify(altered(twice, change), original).differences
    assert (difference.tensor, difference.index) == ("embed_tokens.weight", (7, 5))


def test_the_original_may_tell_how_it_was_made_itself(original):
    save_file(
        load_file(original), original.with_name("m.safetensors"), metadata={"lamplighter": '{"from": "elsewhere"}'}
    )
    verdict = ll.verify(prune(original.with_name("m.safetensors")), original.with_name("m.safetensors"))
    assert verdict.ok
    assert verdict.unchecked is None


def test_the_reason_is_one_line_whatever_the_metadata_hold(original):
    record = {"method": "lamp", "sparsity": 0.5, "pattern": "\nok: fine \x1b[2J", "include": "\nok: fine"}
    path = original.with_name("b.safetensors")
    for each in (record, record | {"include": None}, record | {"method": "\nok: fine"}):
        save_file(load_file(original), path, metadata={"lamplighter": json.dumps(each)})
        assert ll.verify(path, original).unchecked.isprintable()


def test_a_total_of_another_number_is_noticed_where_layers_cannot_be_planned(original):
    record = {"sparsity": 0.5, "method": "mine:alone", "kept": 17}
    path = original.with_name("b.safetensors")
    save_file(load_file(original), path, metadata={"lamplighter": json.dumps(record)})
    (difference,) = ll.verify(path, original).differences
    assert difference.tensor == "all layers"
    assert "planned were 17" in difference.why


def test_large_tensors_are_compared_in_any_order_with_the_first_difference_found(tmp_path):
    weight = torch.randn(3 * CHUNK + 5)
    save_file({"w": weight}, tmp_path / "a.safetensors")
    changed = weight.clone()
    changed[[CHUNK + 7, 3 * CHUNK + 1]] += 1
    save_file({"w": changed}, tmp_path / "b.safetensors")
    for threads in (1, 4):
        verdict = ll.verify(tmp_path / "b.safetensors", tmp_path / "a.safetensors", threads=threads)
        assert verdict.differences[0].index == (CHUNK + 7,)
        assert verdict.different == 2


def test_folders_of_other_shardings_compare(tmp_path):
    tensors = weights()
    names = list(tensors)
    write_folder(tmp_path / "a", {n: tensors[n] for n in names[:2]}, {n: tensors[n] for n in names[2:]})
    save_file(tensors, tmp_path / "a.safetensors")
    ll.prune_checkpoint(tmp_path / "a", tmp_path / "b", sparsity=0.6)
    ll.pack(tmp_path / "b", tmp_path / "p")
    for path in ("b", "p"):
        for original in ("a", "a.safetensors"):
            assert ll.verify(tmp_path / path, tmp_path / original).ok


def test_two_packed_files_compare(original):
    pruned = prune(original)
    both = packed(pruned), packed(original)
    verdict = ll.verify(*both)
    assert verdict.ok
    assert verdict.removed == ll.verify(pruned, original).removed
    assert not ll.verify(*reversed(both)).ok


def test_bytes_are_watched(original):
    told = []
    ll.verify(original, original, watch=told.append)
    assert sum(told) == sum(weight.nbytes for weight in weights().values())
