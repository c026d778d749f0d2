"""The README's snippets run, in order, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in snippets():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(README), "exec"), names)
        said = "\n".join(line[2:] for line in code.splitlines() if line.startswith("# "))
        assert printed.getvalue().strip() == said.strip()
    assert len(snippets()) >= 5


def test_figures_in_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(snippets()[0], names)
    assert eval("w.bits_per_element", names) == 4.25
    assert eval("w.error(weight).sqnr_db", names) == pytest.approx(19.05, abs=0.03)


def test_commands_are_there() -> None:
    text = README.read_text()
    for marker in ("demo", "test"):
        assert re.search(rf"<!-- {marker} command -->\n```\n\S.*\n```", text)
    assert "@@" not in text
