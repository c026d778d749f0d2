"""The layers: imports point downward, and importing or asking for help loads little."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import blockscale

PACKAGE = Path(blockscale.__file__).parent

# Each row may import from itself and from the rows above.
LAYERS = (
    ("errors", "version"),
    ("elements", "packing", "arguments", "blocks", "threads"),
    ("schemes",),
    ("rules",),
    ("_kernels", "native", "native_linear", "native_minimum"),
    ("dequantize", "metrics", "values"),
    ("report", "tensor_parts", "tensor"),
    ("quantize", "mx", "linear", "linear_checks", "reblock"),
    ("hurray", "containers", "dialects"),
    ("sources",),
    ("saving",),
    ("checkpoint",),
    (
        "recode_steps",
        "recode",
        "outputs",
        "targets",
        "journal",
        "target_layout",
        "target_bytes",
        "carry",
        "refusals",
        "gptq_versions",
        "keep",
        "plan",
        "results",
        "manifest",
        "slab_jobs",
        "pipeline",
        "slabs",
        "spread",
        "compare",
        "findings",
        "verify_parts",
        "verify",
        "summary",
    ),
    ("__init__",),
    ("cli", "__main__"),
)
RANK = {name: i for i, row in enumerate(LAYERS) for name in row}


def imported_modules(path: Path) -> set[str]:
    """Top-level modules of blockscale that a file imports, also inside functions."""
    package = path.relative_to(PACKAGE).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = list(package[: len(package) - node.level + 1])
            names = (
                [[*base, *node.module.split(".")]] if node.module else [[*base, a.name] for a in node.names]
            )
            found |= {parts[0] for parts in names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blockscale"):
            found |= (
                {a.name for a in node.names}
                if node.module == "blockscale"
                else {str(node.module).split(".")[1]}
            )
    return found


def test_imports_point_downward() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        layer = parts[0].removesuffix(".py")
        assert layer in RANK, f"{layer} has no place in the layers"
        wrong += [
            f"{path.name} imports {name}"
            for name in imported_modules(path)
            if RANK.get(name, -1) > RANK[layer]
        ]
    assert not wrong


def test_every_module_of_a_layer_exists() -> None:
    names = {p.name.removesuffix(".py").split(".")[0] for p in PACKAGE.iterdir()}
    assert set(RANK) <= names


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[-2].split()
    )


def test_import_loads_only_numpy_and_ml_dtypes() -> None:
    loaded = loaded_by("import blockscale")
    for heavy in ("rich", "click", "safetensors", "gguf", "torch", "hypothesis", "pytest"):
        assert heavy not in loaded


def test_tests_do_not_take_arithmetic_from_the_product() -> None:
    source = (Path(__file__).parent / "reference.py").read_text()
    tree = ast.parse(source)
    modules = {
        n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and "blockscale" in (n.module or "")
    }
    assert modules <= {"blockscale.schemes", "blockscale.elements", "blockscale.rules"}
