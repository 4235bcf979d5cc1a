"""The example trains, prunes, stops, and goes on with another number of processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lamplighter as ll

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_training.py"


def torchrun(processes, *arguments):
    """What the example prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(EXAMPLE), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_training_with_fsdp2_keeps_zeros_and_resumes_with_another_number_of_processes(tmp_path):
    first = torchrun(2, "--folder", str(tmp_path), "--steps", "20")
    assert "2 processes, steps 10 to 20, Masks(5 layers, 3,782 of 37,824 kept" in first
    second = torchrun(3, "--folder", str(tmp_path), "--steps", "30")
    assert "3 processes, steps 20 to 30, Masks(5 layers, 3,782 of 37,824 kept" in second
    files = [tmp_path / f"step-0000{steps}" / "masks.safetensors" for steps in (20, 30)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert ll.Masks.load(files[0]).total_kept == 3782
