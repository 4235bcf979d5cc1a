"""The update on flat parameters is the optimizer of that name in PyTorch, in plain operations and as a kernel."""

import os
import subprocess
import sys

import pytest
import torch

from lamplighter.training import update as plain
from lamplighter.training.fit import make_optimizer, set_learning_rate
from lamplighter.training.flat import lay_out
from lamplighter.training.settings import Settings, learning_rate

SHAPES = ((5, 3, 3, 3), (7, 11), (4,), (2, 5, 4, 1, 3), ())


def values(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def masks(above=0.0):
    kept = [value > above for value in values(9)]
    kept[2] = None
    return kept


FEW = 2.0  # an above that leaves so few entries that they are listed


def own_masks(masked):
    """Masks that keep about half, few or (without masks) all of the entries."""
    if not masked:
        return [None] * len(SHAPES)
    return masks(FEW if masked == "few" else 0.0)


def run(update, optimizer, dtype, *, masked, steps=7):
    """The flat parameters after some steps with random gradients, scaled by a half."""
    settings = Settings(steps=steps, optimizer=optimizer, lr=0.1, weight_decay=0.1, warmup=3, drops=(0.5,))
    flat = lay_out(values(0), own_masks(masked), dtype)
    rows, step = plain.table(settings, torch.device("cpu")), torch.zeros(1, dtype=torch.int64)
    for number in range(steps):
        flat.take(values(number + 1, dtype))
        update(flat, plain.rule(settings), rows, step, torch.tensor([0.5]))
        step += 1
    return flat


def reference(optimizer, dtype, *, masked, steps=7):
    """The same by PyTorch's optimizer in double precision."""
    settings = Settings(steps=steps, optimizer=optimizer, lr=0.1, weight_decay=0.1, warmup=3, drops=(0.5,))
    kept = own_masks(masked)
    parameters = [torch.nn.Parameter(v.double()) for v in values(0)]

    def zero(tensors):
        for tensor, own in zip(tensors, kept, strict=True):
            if own is not None:
                tensor.masked_fill_(~own, 0)

    with torch.no_grad():
        zero(parameters)
    torch_optimizer = make_optimizer(parameters, settings)
    for number in range(steps):
        for parameter, gradient in zip(parameters, values(number + 1, dtype), strict=True):
            parameter.grad = gradient.double() * 0.5
        zero([parameter.grad for parameter in parameters])
        set_learning_rate(torch_optimizer, learning_rate(settings, number))
        torch_optimizer.step()
    return [parameter.detach() for parameter in parameters]


def check(update, optimizer, dtype, *, masked):
    flat = run(update, optimizer, dtype, masked=masked)
    expected = reference(optimizer, dtype, masked=masked)
    for found, wanted in zip(flat.views(flat.master), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-6)
    for found, own in zip(flat.views(flat.master), own_masks(masked), strict=True):
        if own is not None:
            assert not found[~own].any()
            assert not found[~own].signbit().any()
    torch.testing.assert_close(flat.working.float(), flat.master, rtol=2**-7, atol=0)


every_optimizer = pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False, "few"])
def test_the_plain_update_is_pytorchs_optimizer(optimizer, dtype, masked):
    check(plain.update, optimizer, dtype, masked=masked)


def test_the_kernel_does_the_same():
    """On the CPU, by Triton's interpreter, which has to be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["checked"] * 36


def test_gradients_may_come_in_any_memory_format():
    flat = lay_out([torch.zeros(4, 3, 2, 2)], [None], torch.float32)
    given = torch.randn(4, 3, 2, 2)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        flat.take([given.contiguous(memory_format=memory_format)])
        assert torch.equal(flat.views(flat.gradient)[0], given)


def test_kernels_lie_with_channels_innermost_and_every_parameter_is_aligned():
    flat = lay_out(values(0), [None] * len(SHAPES), torch.float32)
    assert all(offset % 64 == 0 for offset in flat.offsets)
    kernel = flat.views(flat.master)[0]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    for found, wanted in zip(flat.views(flat.master), values(0), strict=True):
        assert torch.equal(found, wanted)


def test_clipping_is_pytorchs():
    flats = [lay_out(values(0), masks(), torch.float32), lay_out(values(1), [None] * len(SHAPES), torch.bfloat16)]
    flats[0].take(values(2))
    flats[1].take(values(3, torch.bfloat16))
    gradients = [g if m is None else g * m for g, m in zip(values(2), masks(), strict=True)]
    gradients += [g.bfloat16().float() for g in values(3)]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    assert plain.clipping(flats, 0.5).item() == pytest.approx(0.5 / norm.item(), rel=1e-5)
    assert plain.clipping(flats, 1e6).item() == 1.0


def test_few_kept_entries_are_listed_for_each_parameter():
    flat = lay_out(values(0), own_masks("few"), torch.float32)
    assert flat.places is not None
    assert flat.places.tolist() == flat.kept.nonzero().view(-1).tolist()
    assert torch.equal(torch.cat(flat.places_of_each), flat.places)
    assert [len(places) for places in flat.places_of_each] == [4 if m is None else int(m.sum()) for m in masks(FEW)]
    assert lay_out(values(0), own_masks(True), torch.float32).places is None


def from_leaves(flat, rule, rows, step, scale):
    """By the kernel that reads gradients where they are: here in tensors of their own, some in another format."""
    from lamplighter.training import update_triton

    update_triton._LARGE = 0
    gradients = [torch.empty_like(place).copy_(place) for place in flat.views(flat.gradient)]
    gradients[0] = gradients[0].contiguous()
    flat.gradient.zero_()
    update_triton.update_from(flat, gradients, rule, rows, step, scale)


if __name__ == "__main__":
    from lamplighter.training import update_triton

    for name in ("adamw", "adam", "sgd"):
        for kind in (torch.float32, torch.bfloat16):
            for held in (True, False, "few"):
                check(update_triton.update, name, kind, masked=held)
                print("checked")
                check(from_leaves, name, kind, masked=held)
                print("checked")
