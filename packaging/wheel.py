#!/usr/bin/env python3
"""Writes the wheel that carries the program and the client for Python: `pip install` brings `bench` and `lab_bench`.

Usage: packaging/wheel.py PROGRAM GLIBC ARCH DOCUMENTS FOLDER
    PROGRAM    the built program
    GLIBC      the oldest glibc that it runs with, such as 2.34
    ARCH       x86_64 or aarch64
    DOCUMENTS  a folder with the licences and the SBOM
    FOLDER     where the wheel is written; its path is printed
"""

import base64
import hashlib
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "clients" / "python"
# The oldest date that a zip archive has: the same input gives the same bytes.
DATE = (1980, 1, 1, 0, 0, 0)

RUN = '''"""Runs the program `bench` that this package carries: `python -m bench ARGUMENT...`."""

import os
import sysconfig
from pathlib import Path


def program() -> str:
    """The path of the program, which pip puts beside the scripts of the environment that has this package.

    Raises FileNotFoundError where it is not there.
    """
    name = "bench" + (sysconfig.get_config_var("EXE") or "")
    # Of a virtual environment or the system, of `pip install --user`, and of `pip install --target`.
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", scheme=f"{os.name}_user"),
        str(Path(__file__).resolve().parent.parent / "bin"),
    ]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"the program {name} is in none of: {', '.join(folders)}")
'''

MAIN = '''"""`python -m bench`."""

import os
import subprocess
import sys

from bench import program

line = [program(), *sys.argv[1:]]
if sys.platform == "win32":
    sys.exit(subprocess.run(line).returncode)
os.execv(line[0], line)
'''


def metadata(project: dict) -> str:
    """The core metadata of the client, which this wheel is a platform's form of."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        "Summary: Inference Lab Bench: an LLM inference server and lab bench, and its client for Python",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE-APACHE",
        "License-File: LICENSE-MIT",
        "License-File: THIRD-PARTY-LICENCES.txt",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"] if classifier != "Operating System :: OS Independent"),
        "Classifier: Operating System :: POSIX :: Linux",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {dependency}" for dependency in project["dependencies"]),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + (CLIENT / "README.md").read_text(encoding="utf-8")


def main(program: Path, glibc: str, arch: str, documents: Path, folder: Path) -> Path:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    if project["version"] != version:
        sys.exit(f"error: the client has version {project['version']}, the program {version}")
    name = project["name"].replace("-", "_")
    base = f"{name}-{version}"
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{arch}"
    info = f"{base}.dist-info"
    files = {f"{base}.data/scripts/bench": program.read_bytes(), "bench/__init__.py": RUN.encode(), "bench/__main__.py": MAIN.encode()}
    for file in sorted((CLIENT / "src").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            files[file.relative_to(CLIENT / "src").as_posix()] = file.read_bytes()
    for file in [ROOT / "LICENSE-APACHE", ROOT / "LICENSE-MIT", documents / "THIRD-PARTY-LICENCES.txt"]:
        files[f"{info}/licenses/{file.name}"] = file.read_bytes()
    files[f"{info}/sboms/bench.cdx.json"] = (documents / "sbom.cdx.json").read_bytes()
    files[f"{info}/METADATA"] = metadata(project).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: packaging/wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()

    def digest(data: bytes) -> str:
        return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = [f"{path},{digest(data)},{len(data)}" for path, data in files.items()] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = folder / f"{base}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith("/scripts/bench") else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    print(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5])))
