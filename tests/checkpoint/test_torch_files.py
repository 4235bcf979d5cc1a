"""Files of torch: what is not a tensor in them is named, and tensors that cannot be written are refused."""

import pytest
import torch

import lamplighter as ll
from lamplighter.errors import LamplighterError


def saved(path, content):
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("__metadata__", torch.ones(2), "which in safetensors files means the metadata"),
        ("a\ud800.weight", torch.ones(2), r"named 'a\\ud800\.weight', which is no text"),
        ("a.weight", torch.ones(2, device="meta"), "'a.weight' is on the meta device"),
        ("a.weight", torch.zeros(1).expand(25000, 20000), "of 2,000,000,000 bytes shows the same 4 bytes"),
    ],
)
def test_tensors_that_no_result_could_hold_are_refused(tmp_path, name, tensor, said):
    path = saved(tmp_path / "x.pt", {"b.weight": torch.ones(2, 2), name: tensor})
    with pytest.raises(LamplighterError, match=said):
        ll.Checkpoint(path)


def test_what_is_left_out_of_a_file_is_named(tmp_path):
    weight = torch.randn(4, 4)
    content = {"state_dict": {"a.weight": weight, "extra": {"b": weight}}, "epoch": 3, "optimizer": {"m": weight}}
    report = ll.prune_checkpoint(saved(tmp_path / "x.pt", content), tmp_path / "y.safetensors", sparsity=0.5)
    assert report.dropped == ("x.pt: epoch", "x.pt: optimizer", "x.pt: extra")
    plain = saved(tmp_path / "z.pt", {"a.weight": weight, "ema": {"a.weight": weight}})
    assert ll.Checkpoint(plain).dropped == ["z.pt: ema"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"net": {"a.weight": torch.ones(2, 2)}}, "holds a mapping 'net', not tensors"),
        ({"model": {"module": {"a.weight": torch.ones(2, 2)}}}, "holds a mapping 'module', not tensors"),
        ({"epoch": 3, "name": "x"}, "holds no tensors, but 'epoch', 'name'"),
    ],
)
def test_a_file_whose_tensors_are_elsewhere_is_refused(tmp_path, content, said):
    with pytest.raises(LamplighterError, match=said) as caught:
        ll.Checkpoint(saved(tmp_path / "x.pt", content))
    assert "torch.save(" in str(caught.value.hint)
