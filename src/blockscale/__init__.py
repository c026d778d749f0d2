"""Block-scaled tensors: quantize, store, read back exactly."""

from . import mx
from .errors import BlockscaleError
from .quantize import quantize
from .schemes import Scheme, scheme
from .tensor import BlockTensor, QuantizeReport

__version__ = "0.1.0"

__all__ = [
    "BlockTensor",
    "BlockscaleError",
    "QuantizeReport",
    "Scheme",
    "mx",
    "quantize",
    "scheme",
]
