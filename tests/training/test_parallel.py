"""Several processes share each batch and end with the same network as one process would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lamplighter.models.conv6 import conv6
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings

pytestmark = pytest.mark.slow


def train(images):
    """Conv-6 has no batch norm, so that sharing a batch changes nothing but the order of sums."""
    torch.manual_seed(0)
    model = conv6(10, width=4)
    fit(model, images, Settings(steps=4, batch=16, lr=1e-3), seed=3)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_two_processes_train_as_one(images, tmp_path):
    torch.save({"images": images.train_images, "labels": images.train_labels}, tmp_path / "data.pt")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], train(images), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    from lamplighter.data.dataset import Dataset

    folder = Path(sys.argv[1])
    saved = torch.load(folder / "data.pt")
    pixels, labels = saved["images"], saved["labels"]
    torch.distributed.init_process_group("gloo")
    data = Dataset("example", pixels, labels, pixels, labels, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 10)
    torch.save(train(data), folder / f"{torch.distributed.get_rank()}.pt")
    torch.distributed.barrier()  # nobody leaves while another still talks to it
    torch.distributed.destroy_process_group()
