"""The same masks on a GPU as on the CPU, bit for bit."""

import pytest
import torch

import lamplighter as ll

pytestmark = pytest.mark.gpu

METHODS = ["lamp", "global", "uniform", "uniform+", "er", "erk"]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Normal, heavy-tailed, rounded, constant, duplicated and empty layers, one not in logical order in memory."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    layers = {
        "conv.weight": normal(64, 32, 3, 3).to(memory_format=torch.channels_last),
        "wide.weight": normal(500, 400) * 0.02,
        "heavy.weight": normal(300, 100) / normal(300, 100).abs().clamp(min=1e-3),
        "rounded.weight": (normal(200, 100) * 4).round() / 4,
        "constant.weight": torch.full((50, 100), 0.25),
        "twin.0.weight": normal(100, 100),
        "empty.weight": torch.empty(0, 5),
        "one.weight": torch.tensor([[3.0]]),
        "fc.weight": normal(10, 64),
    }
    layers["twin.1.weight"] = layers["twin.0.weight"].clone()
    return {name: tensor.to(dtype).clone() for name, tensor in layers.items()}


def on_gpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in tensors.items()}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    as_bytes = [t.cpu().contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(*as_bytes)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_every_method_gives_the_masks_of_the_cpu(method, dtype, sparsity):
    if method == "uniform+" and sparsity > 0.8:
        pytest.skip("uniform+ cannot go so far here: its dense convolution is too large a part")
    cpu = weights(dtype)
    gpu = on_gpu(cpu)
    masks = ll.prune(cpu, sparsity, method=method)
    assert ll.prune(gpu, sparsity, method=method) == masks
    assert all(same_bits(gpu[name], cpu[name]) for name in cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_later_rounds_give_the_masks_of_the_cpu(dtype):
    cpu = weights(dtype)
    gpu = on_gpu(cpu)
    masks = {}
    for sparsity in (0.2, 0.5, 0.8, 0.95):
        masks = {
            "cpu": ll.prune(cpu, sparsity, masks=masks.get("cpu")),
            "gpu": ll.prune(gpu, sparsity, masks=masks.get("gpu")),
        }
        assert masks["gpu"] == masks["cpu"]
        for name in cpu:  # training moves everything, held or not
            cpu[name].add_(0.01)
            gpu[name].copy_(cpu[name])


@pytest.mark.parametrize(("pattern", "sparsity"), [("2:4", 0.5), ("row", 0.7)])
def test_patterns_give_the_masks_of_the_cpu(pattern, sparsity):
    cpu = {name: tensor for name, tensor in weights(torch.bfloat16).items() if name in ("wide.weight", "fc.weight")}
    gpu = on_gpu(cpu)
    assert ll.prune(gpu, sparsity, pattern=pattern) == ll.prune(cpu, sparsity, pattern=pattern)


def test_random_scores_are_those_of_the_cpu():
    cpu = weights(torch.float32)
    assert ll.prune(on_gpu(cpu), 0.7, score="random") == ll.prune(cpu, 0.7, score="random")


@pytest.mark.parametrize("fused", [False, True])
def test_pruned_weights_stay_zero_on_a_gpu(fused):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    masks = ll.prune(model, 0.9)
    masks.hold(optimizer)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(20):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for name, mask in masks.items():
            assert not model.get_parameter(name)[~mask].any()
            assert not model.get_parameter(name).grad[~mask].any()


def test_masks_saved_on_a_gpu_load_on_the_cpu(tmp_path):
    masks = ll.prune(on_gpu(weights(torch.float32)), 0.9)
    masks.save(tmp_path / "masks.safetensors")
    assert ll.Masks.load(tmp_path / "masks.safetensors") == masks
