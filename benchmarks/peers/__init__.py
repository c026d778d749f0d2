"""One module per peer: `name()` says its version, `make(case)` returns a call to time, or None.

A module whose import fails is skipped with a line. None of the peers runs in blockscale's own process setup:
they are imported only when the benchmarks start.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = (
    "gguf_python",
    "ggml",
    "ggml_repacked",
    "onnxruntime_nbits",
    "torchao_mx",
    "torch_dense",
    "ml_dtypes_cast",
    "numpy_dense",
)


def load() -> tuple[dict[str, ModuleType], list[str]]:
    """Peers that can be imported, by name and version, and a line for each that cannot."""
    found, skipped = {}, []
    for module in MODULES:
        try:
            peer = import_module(f"peers.{module}")
            found[peer.name()] = peer
        except Exception as error:  # whatever a peer's import raises, the rest goes on
            skipped.append(
                f"{module}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
    return found, skipped
