# mypy: disable-error-code="import-not-found,import-untyped"
"""The dense runtimes that sparse networks are measured against, as far as they are installed."""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

Work = Callable[[], object]


def eager(model: nn.Module, example: Tensor, threads: int) -> Work:  # noqa: ARG001 - torch's threads are set by the caller
    """PyTorch, operator by operator."""
    return lambda: model(example)


def inductor(model: nn.Module, example: Tensor, threads: int) -> Work:  # noqa: ARG001
    """torch.compile with frozen weights."""
    from torch._inductor import config  # noqa: PLC0415

    with config.patch(freezing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model)
        compiled(example)
    return lambda: compiled(example)


def openvino(model: nn.Module, example: Tensor, threads: int) -> Work:
    """OpenVINO in float32."""
    import openvino as ov  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = ov.convert_model(model, example_input=example, input=[list(example.shape)])
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(converted, "CPU", options).create_infer_request()
    given = example.numpy()
    return lambda: request.infer([given], share_inputs=True)


def onnxruntime(model: nn.Module, example: Tensor, threads: int) -> Work:
    """ONNX Runtime in float32."""
    import onnxruntime as ort  # noqa: PLC0415

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory(prefix="lamp-bench-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (example,), str(path), dynamo=False)
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name, given = session.get_inputs()[0].name, example.numpy()
    return lambda: session.run(None, {name: given})


CONTENDERS: dict[str, Callable[[nn.Module, Tensor, int], Work]] = {
    "eager": eager,
    "inductor": inductor,
    "openvino": openvino,
    "onnxruntime": onnxruntime,
}
