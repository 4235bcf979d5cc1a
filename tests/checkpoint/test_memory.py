"""Pruning takes a few MB, whatever the size of the checkpoint and the number of its layers."""

import json
import subprocess
import sys

import pytest

LIMIT = 250_000_000  # beyond what importing torch takes


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [("--size", "2"), ("--size", "2", "--dtype", "float32"), ("--experts", "10000")], ids=" ".join
)
def test_peak_memory_beyond_importing_torch(tmp_path, content):
    command = ["bench", "checkpoint", *content, "--repeats", "1", "--folder", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "lamplighter", *command], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found["peak_extra_bytes"] is None:
        pytest.skip("the system does not tell")
    assert found["nbytes"] > 1.9e9
    assert found["peak_extra_bytes"] < LIMIT
