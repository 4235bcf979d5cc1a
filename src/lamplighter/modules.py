"""Looking into models: through wrappers, and at what each kind of module holds."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from lamplighter.naming import ATTENTION_MATRICES, is_embedding_name, is_expert_stack, is_packed, is_prunable_name

# Recurrent weights have names and shapes of their own; a user chooses them with `include`.
_NEVER = (nn.Bilinear, nn.RNNBase, nn.RNNCellBase, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU)
# What `torch.nn.utils.prune`, `spectral_norm` and `weight_norm` append to the name of what they compute a weight from.
_SOURCES = ("_orig", "_g", "_v")


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DistributedDataParallel` and `DataParallel`, however often wrapped."""
    while True:
        # By name, because importing torch._dynamo costs a second and only compiled models need it.
        if type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
            inner = module._modules["_orig_mod"]
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        else:
            return module
        assert isinstance(inner, nn.Module)
        module = inner


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As `model.named_modules()`, wrappers looked through and parametrizations left out."""
    return _walk(model, "", set())


def join(path: str, name: str) -> str:
    """The full name of something called `name` in the module at `path`."""
    return f"{path}.{name}" if path else name


def is_hf_conv1d(module: nn.Module) -> bool:
    """Whether this is Hugging Face's `Conv1D`, a Linear with its weight transposed (known without importing it)."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(module).__mro__
    )


def inputs_first(module: nn.Module) -> bool:
    """Whether the first axis of the module's weight indexes inputs, not outputs."""
    return isinstance(module, _ConvTransposeNd) or is_hf_conv1d(module)


def kind_of(path: str, module: nn.Module, name: str, tensor: Tensor) -> str:
    """What the parameter `name` of the module at `path` is: "matrix", "stack", "embedding" or "other".

    Known module types decide; a parameter of any other module is judged by its name and shape, and by the name of the
    module's class, which speaks as the path does.
    """
    packed = not is_lazy(tensor) and is_packed(name, tensor.shape, tensor.dtype)
    if isinstance(module, nn.Linear | _ConvNd) or is_hf_conv1d(module):
        return "matrix" if name == "weight" or packed else "other"
    if isinstance(module, nn.MultiheadAttention):
        return "matrix" if name in ATTENTION_MATRICES or packed else "other"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    if isinstance(module, _NEVER) or is_lazy(tensor):
        return "other"
    views = (join(path, name), join(path, f"{type(module).__name__}.{name}"))
    if any(is_expert_stack(view, tensor.shape) for view in views):
        return "stack"
    if any(is_embedding_name(view) for view in views):
        return "embedding"
    return "matrix" if all(is_prunable_name(view, tensor.shape, tensor.dtype) for view in views) else "other"


def computed_weights(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The tensors of a module that are computed from other parameters, each with those parameters by name."""
    computed: dict[str, dict[str, Tensor]] = {}
    if parametrize.is_parametrized(module):
        lists = module.parametrizations
        assert isinstance(lists, nn.ModuleDict)
        for name, originals in lists.items():
            sources = originals.named_parameters(recurse=False)
            computed[name] = {f"parametrizations.{name}.{source}": tensor for source, tensor in sources}
    for source, tensor in module.named_parameters(recurse=False):
        target = next((source.removesuffix(end) for end in _SOURCES if source.endswith(end)), "")
        if target and target not in module._parameters and isinstance(getattr(module, target, None), Tensor):
            computed.setdefault(target, {})[source] = tensor
    return {name: sources for name, sources in computed.items() if sources}


def packed_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Quantised weights kept as buffers: found in order to be refused, lest the rest be pruned without them."""
    return [
        (name, buffer)
        for name, buffer in module.named_buffers(recurse=False)
        if not is_lazy(buffer) and is_packed(name, buffer.shape, buffer.dtype)
    ]


def packs_weight(path: str, module: nn.Module) -> bool:
    """Whether a module of `torch.ao.quantization` keeps its weight packed, where there is no tensor to be found."""
    if path.rpartition(".")[2] == "_packed_params":  # the part of a quantised Linear that is found with it
        return False
    if "_packed_params" in module.__dict__ or "_packed_params" in module._modules:
        return True
    homes = [kind.__module__ for kind in type(module).__mro__]
    quantised = any(home.startswith("torch.ao.nn.") and "quantized" in home.split(".") for home in homes)
    return quantised and callable(getattr(module, "weight", None))


def kind_of_packing(module: nn.Module) -> str:
    """What the packed weight of a module is, told by the name of its class: "embedding" or "matrix"."""
    return "embedding" if is_embedding_name(f"{type(module).__name__}.weight") else "matrix"


def stack_output_axis(name: str, tensors: Mapping[str, Tensor | None]) -> int:
    """The axis of an expert's matrix that indexes outputs, told by how the two matrices of an expert fit together.

    Both ways round are in use: (2 i, h) with (h, i), outputs first, and (h, 2 i) with (i, h), inputs first.
    """
    path = name.rpartition(".")[0]
    into, out_of = tensors.get(join(path, "gate_up_proj")), tensors.get(join(path, "down_proj"))
    if into is None or out_of is None or into.dim() != 3 or out_of.dim() != 3:
        return 0
    return int(into.shape[2] == 2 * out_of.shape[1] and into.shape[1] == out_of.shape[2])


def _walk(module: nn.Module, path: str, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    module = unwrap(module)
    if module in seen:
        return
    seen.add(module)
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not (name == "parametrizations" and parametrize.is_parametrized(module)):
            yield from _walk(child, join(path, name), seen)
