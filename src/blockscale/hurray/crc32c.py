"""CRC-32C (Castagnoli) in NumPy: long inputs run in lanes that are joined afterwards.

A CRC without its initial and final inversion is linear over GF(2). So the input is cut into lanes of equal
length, all lanes advance together (one vector operation per byte of a lane), and the results are joined by
"what a CRC becomes when n zero bytes follow", a linear map kept as four tables of 256 entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = np.uint32(0x82F63B78)  # 0x1EDC6F41, reflected
_LANES = 1024
_SHORT = 4096


def _byte_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ _POLYNOMIAL, table >> np.uint32(1))
    return table


_TABLE = _byte_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of `data`: reflected, initial value and final xor all ones.

    Source: Hurray format, 4.1; RFC 3720, B.4 (check value of "123456789": 0xE3069283).
    """
    if len(data) < _SHORT:
        state = 0xFFFFFFFF
        table: list[int] = _TABLE.tolist()
        for byte in data:
            state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
        return state ^ 0xFFFFFFFF
    return _crc_in_lanes(data) ^ 0xFFFFFFFF


def _crc_in_lanes(data: bytes) -> int:
    width = -(-len(data) // _LANES)
    padded = np.zeros(width * _LANES, np.uint8)  # zeros in front change nothing while the state is zero
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    start = padded.size - len(data)
    padded[start : start + 4] ^= 0xFF  # the initial value, all ones, as part of the data
    lanes = padded.reshape(_LANES, width)
    states = np.zeros(_LANES, np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        states = _TABLE[(states ^ column) & 0xFF] ^ (states >> np.uint32(8))
    shift = _zero_bytes(width)
    while states.size > 1:
        states = _apply(shift, states[0::2]) ^ states[1::2]
        shift = np.stack([_apply(shift, row) for row in shift])
    return int(states[0])


def _apply(tables: NDArray[np.uint32], states: NDArray[np.uint32]) -> NDArray[np.uint32]:
    out = np.zeros_like(states)
    for k in range(4):
        out ^= tables[k][(states >> np.uint32(8 * k)) & np.uint32(0xFF)]
    return out


def _zero_bytes(n: int) -> NDArray[np.uint32]:
    """The map "n zero bytes follow" as uint32 `(4, 256)`: one table per byte of the state."""
    identity = np.stack([np.arange(256, dtype=np.uint32) << np.uint32(8 * k) for k in range(4)])
    one = _TABLE[identity & np.uint32(0xFF)] ^ (identity >> np.uint32(8))
    result = identity
    while n:
        if n & 1:
            result = np.stack([_apply(one, row) for row in result])
        one = np.stack([_apply(one, row) for row in one])
        n >>= 1
    return result
