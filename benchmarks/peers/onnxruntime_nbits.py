"""onnxruntime's MatMulNBits, 4 bits in blocks of 32: accuracy level 4 (8-bit activations) or 1 (float32)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from work import Case, copies, values


def name() -> str:
    """Name and version."""
    return f"onnxruntime {onnxruntime.__version__} MatMulNBits"


def make(case: Case) -> Callable[[], None] | None:
    """The call to time."""
    if case.operation != "linear" or case.scheme not in ("q4_0", "uint4"):
        return None
    n_bytes = case.n * case.k // 2 + case.n * case.k // 8
    sessions = cycle([session(case, seed) for seed in range(copies(case, n_bytes))])
    feed = {"a": values(case.rows, case.k, 1)}
    return lambda: void(next(sessions).run(None, feed))


def session(case: Case, seed: int) -> onnxruntime.InferenceSession:
    """A model of one node; every copy has bytes of its own (equal initializers would be merged)."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (case.n, case.k // 32, 16), dtype=np.uint8)
    scales = rng.random(case.n * case.k // 32, dtype=np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["a", "b", "s"],
        ["y"],
        domain="com.microsoft",
        K=case.k,
        N=case.n,
        bits=4,
        block_size=32,
        accuracy_level=4 if case.activations else 1,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [case.rows, case.k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [case.rows, case.n])],
        [numpy_helper.from_array(packed, "b"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def void(_: object) -> None:
    """Nothing."""
