"""What quantizing cost, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """Every inexact event of a quantization, counted (docs/rules.md, "Events").

    Attributes:
        rule: the rule that chose the scales.
        elements: elements of the tensor.
        blocks: blocks of the tensor.
        saturated: elements whose code was clamped to the end of the range.
        saturated_blocks: blocks with at least one of them.
        zeroed: elements that are not zero and whose code decodes to zero.
        zero_blocks: blocks whose elements are all zero.
        scales_raised: scales that would have been stored as zero.
        scales_clamped: MX exponents clamped at either end.
        nan_blocks: blocks marked NaN on request.
        unweighted_blocks: blocks whose importances were all zero.
    """

    rule: str = ""
    elements: int = 0
    blocks: int = 0
    saturated: int = 0
    saturated_blocks: int = 0
    zeroed: int = 0
    zero_blocks: int = 0
    scales_raised: int = 0
    scales_clamped: int = 0
    nan_blocks: int = 0
    unweighted_blocks: int = 0

    @property
    def saturated_share(self) -> float:
        """Share of elements that saturated."""
        return self.saturated / self.elements if self.elements else 0.0

    @property
    def saturated_block_share(self) -> float:
        """Share of blocks in which something saturated."""
        return self.saturated_blocks / self.blocks if self.blocks else 0.0

    def __add__(self, other: QuantizeReport) -> QuantizeReport:
        """Counts of two parts of one tensor (or of two tensors) together."""
        counts = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[1:]}
        return QuantizeReport(self.rule or other.rule, **counts)
