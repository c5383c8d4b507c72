#!/usr/bin/env python3
"""What the program is made of: the licences of all its crates and of ggml as one text, or as a list for machines (SBOM).

Usage: packaging/crates.py licences|sbom [--target TRIPLE] [--features LIST] > FILE

Crates that only build the program are left out. A crate without a licence text ends the script with an error.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The crate that carries ggml's sources; nothing of its own is compiled.
GGML_CRATE = "llama-cpp-sys-2"
CARGO = os.environ.get("CARGO", "cargo")
TEXT_NAME = re.compile(r"(licen[cs]e|copying|unlicense|notice|copyright|ofl|ufl)([-_.].*)?|.*-licen[cs]e\.txt", re.IGNORECASE)
# Parts of a crate that are not in the program.
UNUSED = {"tests", "test", "benches", "examples", "target", ".github", "src"}


class Missing(Exception):
    """A crate without a licence text."""


def cargo_metadata(target: str, features: str) -> dict:
    command = [CARGO, "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    command += ["--features", features] if features else []
    return json.loads(subprocess.check_output(command, cwd=ROOT))


def ggml_package() -> dict:
    command = [CARGO, "metadata", "--format-version", "1", "--locked", "--all-features"]
    packages = json.loads(subprocess.check_output(command, cwd=ROOT))["packages"]
    return next(package for package in packages if package["name"] == GGML_CRATE)


def compiled(metadata: dict) -> list[dict]:
    """The packages whose code is in the program, by name: those that it reaches through normal dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting, found = [metadata["resolve"]["root"]], set()
    while waiting:
        at = waiting.pop()
        if at in found:
            continue
        found.add(at)
        for dependency in nodes[at]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[at] for at in found), key=lambda package: (package["name"], package["version"]))


def folder(package: dict) -> Path:
    return Path(package["manifest_path"]).parent


def texts(package: dict, top: Path) -> list[str]:
    """The licence texts below a folder, of parts from elsewhere too."""
    def is_licence(file: Path) -> bool:
        # A text under the name of a font is the font's.
        return bool(TEXT_NAME.fullmatch(file.name)) or (file.suffix == ".txt" and file.with_suffix(".ttf").is_file())

    files = [
        file
        for file in sorted(top.rglob("*"))
        if file.is_file() and is_licence(file) and not UNUSED & set(file.relative_to(top).parts[:-1])
    ]
    found = [file.read_text(encoding="utf-8", errors="replace").strip() for file in files]
    found = [text for text in found if text]
    if not found:
        raise Missing(f"{package['name']} {package['version']} ({package['license']}): no licence text in {top}")
    return found


def licences(packages: list[dict], ggml: dict) -> str:
    users = defaultdict(list)
    missing = []
    named = []
    for package in packages:
        own = package["source"] is None
        name = f"{package['name']} {package['version']}"
        if not own:
            named.append(f"{name}: {package['license'] or 'see its text'}, {package['repository'] or package['homepage'] or 'crates.io'}")
        try:
            found = texts(package, folder(package)) if not own else []
        except Missing as error:
            missing.append(str(error))
            continue
        for text in found:
            users[text].append(name)
    try:
        for text in texts(ggml, folder(ggml) / "llama.cpp"):
            users[text].append(f"ggml (of {GGML_CRATE} {ggml['version']})")
    except Missing as error:
        missing.append(str(error))
    if missing:
        raise Missing("\n".join(missing))
    named.append(f"ggml (of {GGML_CRATE} {ggml['version']}): MIT, https://github.com/ggml-org/ggml")
    rule = "=" * 100
    out = [
        "What others wrote of this program, with their licences. The program's own licence is MIT or Apache 2.0, as you prefer.",
        "The sources of all crates are on crates.io, under these names and versions.",
        "",
        *named,
    ]
    for text, of in users.items():
        out += ["", rule, "Of " + ", ".join(dict.fromkeys(of)), rule, "", text]
    return "\n".join(out) + "\n"


def sbom(packages: list[dict], ggml: dict, metadata: dict) -> str:
    """CycloneDX 1.5. The same input gives the same text."""
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    checksums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock}
    references = {package["id"]: f"pkg:cargo/{package['name']}@{package['version']}" for package in packages}

    def component(package: dict, kind: str) -> dict:
        name, version = package["name"], package["version"]
        entry = {"type": kind, "bom-ref": f"pkg:cargo/{name}@{version}", "name": name, "version": version}
        if package["license"]:
            # Older manifests separate alternatives by a slash.
            entry["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
        checksum = checksums.get((name, version))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        entry["purl"] = f"pkg:cargo/{name}@{version}"
        if package["repository"]:
            entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return entry

    root = metadata["resolve"]["root"]
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    depends = [
        {"ref": ref, "dependsOn": sorted({references[d["pkg"]] for d in nodes[at]["deps"] if d["pkg"] in references})}
        for at, ref in references.items()
    ]
    sources = component(ggml, "library")
    sources["description"] = "The sources of ggml, which the program compiles"
    for entry in depends:
        if entry["ref"].startswith("pkg:cargo/ggml-sys@"):
            entry["dependsOn"].append(sources["bom-ref"])
    program = next(package for package in packages if package["id"] == root)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program, "application")},
        "components": [component(package, "library") for package in packages if package["id"] != root] + [sources],
        "dependencies": depends + [{"ref": sources["bom-ref"], "dependsOn": []}],
    }
    name = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, name)}"
    return json.dumps(document, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["licences", "sbom"])
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    parser.add_argument("--features", default="png")
    arguments = parser.parse_args()
    metadata = cargo_metadata(arguments.target, arguments.features)
    packages, ggml = compiled(metadata), ggml_package()
    try:
        text = licences(packages, ggml) if arguments.what == "licences" else sbom(packages, ggml, metadata)
    except Missing as error:
        print(f"error: crates without a licence text:\n{error}", file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
