"""Block-scaled tensors: quantize, store, read back exactly."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import hurray, mx
    from .checkpoint import Checkpoint
    from .checkpoint import open_checkpoint as open
    from .checkpoint import save_checkpoint as save
    from .errors import BlockscaleError
    from .linear import linear
    from .quantize import quantize
    from .reblock import reblock
    from .report import QuantizeReport
    from .schemes import Scheme, scheme
    from .tensor import BlockTensor

__all__ = [
    "BlockTensor",
    "BlockscaleError",
    "Checkpoint",
    "QuantizeReport",
    "Scheme",
    "__version__",
    "hurray",
    "linear",
    "mx",
    "open",
    "quantize",
    "reblock",
    "save",
    "scheme",
]

# Where each public name comes from; loaded when first asked for, so that `blockscale --help` needs no NumPy.
_HOMES = {
    "BlockTensor": ".tensor:BlockTensor",
    "BlockscaleError": ".errors:BlockscaleError",
    "Checkpoint": ".checkpoint:Checkpoint",
    "QuantizeReport": ".report:QuantizeReport",
    "Scheme": ".schemes:Scheme",
    "hurray": ".hurray:",
    "linear": ".linear:linear",
    "mx": ".mx:",
    "open": ".checkpoint:open_checkpoint",
    "quantize": ".quantize:quantize",
    "reblock": ".reblock:reblock",
    "save": ".checkpoint:save_checkpoint",
    "scheme": ".schemes:scheme",
}


class _Package(ModuleType):
    """The package: importing the module `blockscale.quantize` must not hide the function of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and not _HOMES.get(name, ":").endswith(":"):
            return
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    module = import_module(home, __name__)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))


sys.modules[__name__].__class__ = _Package
