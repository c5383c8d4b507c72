"""The code of every notebook, run cell by cell against servers, without Jupyter."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Dict, List
from unittest import mock

from support import MODEL, Server, bench

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def code(notebook: Path) -> List[str]:
    """The cells with code."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(notebook: Path, url: str, folder: str) -> str:
    """What the cells of a notebook print."""
    output = StringIO()
    names: Dict[str, Any] = {"__name__": "__main__"}
    before = os.getcwd()
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, {"BENCH_URL": url}), redirect_stdout(output):
            for i, source in enumerate(code(notebook)):
                exec(compile(source, f"{notebook.name}, code {i + 1}", "exec"), names)
    finally:
        os.chdir(before)
    return output.getvalue()


class Notebooks(unittest.TestCase):
    def test_each_runs_as_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            experts = str(Path(folder) / "experts.gguf")
            bench("synth", "olmoe", "--vocab", str(MODEL), "-o", experts)
            text = "The sea is wide and the sky is blue."
            drift = bench("lab", "drift", str(MODEL), "--text", text, "--b-type", "q4_0", "--json")
            (Path(folder) / "drift.json").write_text(drift)
            plain, mixture = Server("--deterministic"), Server("-m", experts)
            self.addCleanup(plain.close)
            self.addCleanup(mixture.close)
            # What a notebook prints when it is about what it says.
            wanted = {
                "1_capture.ipynb": "strongest neurons of layer 1",
                "2_logit_lens.ipynb": "rank of '4':   1",
                "3_steering.ipynb": "scale 0: 2+2=4\n",
                "4_patching.ipynb": "layers.4.out      0.00   0.00   0.00   1.00\n",
                "5_expert_routing.ipynb": "layers.1.ffn.picked",
                "6_drift.ipynb": "own parts are largest in",
            }
            self.assertEqual(sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")), sorted(wanted))
            for name, expected in wanted.items():
                with self.subTest(name):
                    url = mixture.url if "expert" in name else plain.url
                    self.assertIn(expected, run(NOTEBOOKS / name, url, folder))

    def test_no_outputs_are_stored(self) -> None:
        for path in NOTEBOOKS.glob("*.ipynb"):
            cells = json.loads(path.read_text())["cells"]
            self.assertFalse(any(cell.get("outputs") for cell in cells), path.name)


if __name__ == "__main__":
    unittest.main()
