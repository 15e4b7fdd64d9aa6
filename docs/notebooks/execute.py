"""Run the notebooks of this folder again, each in a fresh kernel, and store what they print.

    python docs/notebooks/execute.py                  # after a change to a notebook, or to what it shows
    python docs/notebooks/execute.py --into FOLDER    # leave the stored ones as they are; warnings are errors then
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
STRICT = "import warnings\nwarnings.simplefilter('error')"


def executed(path: Path, strict: bool) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in an empty folder; a cell that fails ends it."""
    notebook = nbformat.read(path, as_version=4)
    if strict:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(STRICT))
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where, record_timing=False).execute()
    if strict:
        notebook.cells.pop(0)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            output.pop("transient", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to store them (default: where they are)")
    args = parser.parse_args()
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = executed(path, strict=args.into is not None)
        nbformat.write(notebook, (args.into or HERE) / path.name)
        print(path.name)


if __name__ == "__main__":
    main()
