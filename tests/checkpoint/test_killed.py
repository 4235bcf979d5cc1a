"""A process killed at any moment leaves nothing half-written, and nothing that the next run does not clear away."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from checkpoint.made import save_sharded


def killed(folder, kind, mode, moments, seed):
    """What was found after each kill."""
    torch.manual_seed(0)
    tensors = {
        f"layers.{n}.weight": torch.randn(512, 512).to((torch.float32, torch.bfloat16)[n % 2]) for n in range(12)
    }
    if kind == "file":
        save_file(tensors, folder / "in.safetensors")
    else:
        save_sharded(folder / "in", tensors, 4)
        (folder / "in" / "config.json").write_text("{}")
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(script), str(folder), kind, mode, str(moments), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(found, mode, moments):
    assert len(found) == moments
    assert {each["out"] for each in found} <= ({"old", "new"} if mode == "force" else {"absent", "new"})
    assert all(each["in"] and each["clean"] and each["again"] == 0 for each in found)


@pytest.mark.parametrize(("kind", "mode"), [("file", "new"), ("folder", "force")])
def test_killed_at_three_moments(tmp_path, kind, mode):
    judge(killed(tmp_path, kind, mode, 3, seed=0), mode, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("mode", ["new", "force"])
def test_killed_at_thirty_moments(tmp_path, kind, mode):
    found = killed(tmp_path, kind, mode, 30, seed=1)
    judge(found, mode, 30)
    assert sum(each["killed"] for each in found) > 15, "most should be hit before they are through"
