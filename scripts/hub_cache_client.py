"""Shows that `bench` and the package `huggingface_hub` use one cache, against a Hub of the tests: each finds what the
other downloaded, whole and offline; a download that was interrupted goes on; what one removes is gone for the other.

Usage: hub_cache_client.py --bench target/debug/bench --hub target/debug/examples/hub_server
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--bench", required=True)
parser.add_argument("--hub", required=True)
options = parser.parse_args()
bench, hub_server = Path(options.bench).resolve(), Path(options.hub).resolve()
models = Path(__file__).resolve().parents[1] / "models"
NAME, WEIGHTS, GGUF = "owner/repo", "model.safetensors", "gguf/tiny-Q8_0.gguf"
# Nothing answers there: whatever asks the network fails.
NOWHERE = "http://127.0.0.1:9"


class Hub:
    """A Hub with the files of a folder. `requests` has what was asked, once it has ended."""

    def __init__(self, folder, pause=0):
        command = [hub_server, folder, str(pause)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = self.process.stdout.readline().strip()
        self.requests = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        out, _ = self.process.communicate("", timeout=60)
        self.requests = [line.split(" ") for line in out.splitlines()]

    def downloads(self, name):
        """The ranges of the requests for the bytes of a file."""
        asked = [(method, path.split("?"), span) for method, path, span in self.requests]
        return [span for method, path, span in asked if method == "GET" and path[0] == f"/{name}"]


def environment(cache, endpoint, offline):
    own = {"HF_HUB_CACHE": str(cache), "HF_ENDPOINT": endpoint, "HF_TOKEN": "", "HF_HUB_DISABLE_TELEMETRY": "1"}
    own |= {"HF_HUB_OFFLINE": "1" if offline else "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **own}


def run(command, cache, endpoint=NOWHERE, offline=False):
    done = subprocess.run(command, env=environment(cache, endpoint, offline), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def program(*arguments, **where):
    return run([bench, *arguments], **where)


def package(expression, **where):
    """The value of an expression in a process of its own, since the package reads its settings once."""
    code = f"import json, huggingface_hub as hub; print(json.dumps({expression}))"
    return json.loads(run([sys.executable, "-c", code], **where))


def same_files(snapshot, folder, names):
    for name in names:
        assert (snapshot / name).read_bytes() == (folder / name).read_bytes(), name


def answers(name, cache):
    assert program("run", "--quiet", "-m", name, "2+2=?", cache=cache, offline=True) == "2+2=4", name


SNAPSHOT = f"hub.snapshot_download('{NAME}')"
LOCAL = f"hub.snapshot_download('{NAME}', local_files_only=True)"
SCAN = "[[r.repo_id, len(r.revisions)] for r in hub.scan_cache_dir().repos]"
WARNINGS = "[str(w) for w in hub.scan_cache_dir().warnings]"

with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
    root = Path(root)
    folder = root / "repository"
    shutil.copytree(models / "tiny-chat", folder)
    (folder / "gguf").mkdir()
    shutil.copy(models / "tiny-chat.gguf", folder / GGUF)
    of_folder = [path.name for path in folder.iterdir() if path.is_file()]

    # What the package downloaded.
    cache = root / "of-package"
    with Hub(folder) as hub:
        snapshot = Path(package(SNAPSHOT, cache=cache, endpoint=hub.endpoint))
        same_files(snapshot, folder, [*of_folder, GGUF])
        listed = json.loads(program("list", "--json", cache=cache, offline=True))
        assert NAME in {model["name"] for model in listed}, listed
        answers(NAME, cache)
        before = {path: path.stat().st_ino for path in cache.rglob("blobs/*")}
        program("pull", NAME, cache=cache, endpoint=hub.endpoint)
        after = {path: path.stat().st_ino for path in cache.rglob("blobs/*")}
        changed = {path for path in before if after.get(path) != before[path]}
        assert not changed, changed
    assert len(hub.downloads(WEIGHTS)) == 1, hub.requests

    # What the program downloaded.
    cache = root / "of-program"
    with Hub(folder) as hub:
        program("pull", NAME, f"{NAME}:Q8_0", cache=cache, endpoint=hub.endpoint)
        for where in (dict(), dict(offline=True)):
            snapshot = Path(package(LOCAL, cache=cache, **where))
            same_files(snapshot, folder, ["config.json", "tokenizer.json", WEIGHTS, GGUF])
        found = package(f"hub.hf_hub_download('{NAME}', '{GGUF}', local_files_only=True)", cache=cache)
        assert Path(found) == snapshot / GGUF, found
        assert package(SCAN, cache=cache) == [[NAME, 1]] and package(WARNINGS, cache=cache) == []
        package(SNAPSHOT, cache=cache, endpoint=hub.endpoint)
        answers(NAME, cache)
        answers(f"{NAME}:Q8_0", cache)
    assert len(hub.downloads(WEIGHTS)) == 1 and len(hub.downloads(GGUF)) == 1, hub.requests

    # A download that is killed goes on, and does not disturb the package. The program appends pieces of 16 MiB, of which it
    # fetches eight at a time, so the file has more of them.
    cache, copy, large = root / "interrupted", root / "copy", root / "large"
    large.mkdir()
    piece, file = 16 << 20, "large-F32.gguf"
    sizes = [f"--set={name}" for name in ("block_count=6", "n_embd=768", "n_ff=2304", "n_ctx_train=512")]
    vocabulary = ["--vocab", models / "tiny-chat.gguf", "--type", "f32"]
    program("synth", "llama", "-o", large / file, *vocabulary, *sizes, cache=cache)
    size = (large / file).stat().st_size
    assert size > 9 * piece, size
    with Hub(large, pause=4) as hub:
        settings = environment(cache, hub.endpoint, False)
        pull = subprocess.Popen([bench, "pull", f"{NAME}:F32"], env=settings, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        while not (parts := [p for p in cache.rglob("*.incomplete") if p.stat().st_size >= piece]):
            assert pull.poll() is None and time.monotonic() - started < 60, "nothing was interrupted"
            time.sleep(0.01)
        pull.send_signal(signal.SIGKILL)
        pull.wait()
    kept = parts[0].stat().st_size
    assert piece <= kept < size, (kept, size)
    shutil.copytree(cache, copy, symlinks=True)
    with Hub(large) as hub:
        program("pull", f"{NAME}:F32", cache=cache, endpoint=hub.endpoint)
        local = f"hub.hf_hub_download('{NAME}', '{file}', local_files_only=True)"
        same_files(Path(package(local, cache=cache)).parent, large, [file])
    spans = hub.downloads(file)
    starts = [int(span.removeprefix("bytes=").split("-")[0] or 0) for span in spans]
    assert starts and min(starts) == kept, (spans, kept)
    assert not list(cache.rglob("*.incomplete"))
    program("run", "--quiet", "-n", "1", "-m", f"{NAME}:F32", "1", cache=cache, offline=True)
    with Hub(large) as hub:
        same_files(Path(package(SNAPSHOT, cache=copy, endpoint=hub.endpoint)), large, [file])
    program("run", "--quiet", "-n", "1", "-m", f"{NAME}:F32", "1", cache=copy, offline=True)

    # What is not there is not found offline, by either.
    empty = root / "empty"
    missing = subprocess.run([bench, "run", "-m", NAME, "1"], env=environment(empty, NOWHERE, True), capture_output=True)
    assert missing.returncode != 0
    # What one removes is gone for the other.
    program("rm", f"{NAME}:F32", cache=copy)
    assert json.loads(program("list", "--json", cache=copy)) == []
    assert package(SCAN, cache=copy) == []
    strategy = "hub.scan_cache_dir().delete_revisions(*[v.commit_hash for r in hub.scan_cache_dir().repos for v in r.revisions])"
    package(f"[{strategy}.execute()][1:]", cache=cache)
    assert json.loads(program("list", "--json", cache=cache)) == []

print(f"hub cache: content (package {version('huggingface_hub')}, a download went on at {kept} of {size} bytes)")
