"""Real trained weights fit the networks, where they are here."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lamplighter.models.resnet import resnet50


def test_a_trained_resnet50_loads_strictly():
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("LAMPLIGHTER_DATA", beside)) / "resnet50" / "model.safetensors"
    if not path.exists():
        pytest.skip(f"no weights at {path}; LAMPLIGHTER_DATA names the folder that has them")
    with torch.device("meta"):
        model = resnet50(stride_first=True)
    model.load_state_dict(load_file(path), strict=True, assign=True)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
