#!/usr/bin/env python3
"""Runs the fuzz targets of fuzz/ until each has had so many seconds of a processor in all, over any number of runs.

scripts/fuzz.py SECONDS [TARGET ...]     fuzz/README.md holds what was run so far and is written after each slice
scripts/fuzz.py --seeds KB [TARGET ...]  adds the inputs of the corpus that reach most new code to fuzz/seeds

Needs a nightly toolchain and cargo-fuzz. The corpus (fuzz/corpus) and what was found (fuzz/artifacts) stay on this machine.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz")
PAGE = os.path.join(ROOT, "README.md")
# In the order in which they are run: what strangers reach most easily comes first.
TARGETS = ["http", "picture", "sound", "gguf", "mmproj", "safetensors", "tokenizer", "config", "processor", "template",
           "constraint", "definition", "vector", "npy", "overlay", "expression", "worker"]
# What needs lab-server or lab-inspect, not the package lab-core alone.
OF_SERVER = {"http", "overlay"}
COLUMNS = ["target", "CPU seconds", "executions", "edges", "of", "corpus", "date", "commit", "findings"]
# Wall-clock seconds between two entries of the page.
SLICE = 120
# Seeds that are added to a target at a time.
MOST_SEEDS = 12
# An input may take 20 seconds, since a constraint is given up after 10, and more on a machine with other work.
TIMEOUT = 60


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, help="seconds of a processor for each target in all; kB with --seeds")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--seeds", action="store_true", help="write seeds instead of running")
    parser.add_argument("--sanitizer", default="none", choices=["none", "address"], help="default: none")
    args = parser.parse_args()
    for name in args.targets:
        if name not in TARGETS:
            parser.error(f"there is no target `{name}`; found {', '.join(TARGETS)}")
    args.targets = args.targets or TARGETS
    return args


def build(targets, sanitizer):
    if shutil.which("cargo-fuzz") is None:
        sys.exit("cargo-fuzz is missing: cargo install cargo-fuzz (and rustup toolchain install nightly)")
    command = ["cargo", "+nightly", "fuzz", "build", "--sanitizer", sanitizer, "--codegen-units", "64"]
    for features in [[], ["--features", "server"]]:
        wanted = [name for name in targets if (name in OF_SERVER) == bool(features)]
        # Without a name all are built whose features are on.
        if len(wanted) > 1:
            wanted = [""]
        for name in wanted:
            subprocess.run(["nice", "-n", "10", *command, *features, *([name] if name else [])], check=True,
                           cwd=os.path.dirname(ROOT))


def program(name):
    host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    triple = re.search(r"^host: (.*)$", host, re.M)[1]
    return os.path.join(ROOT, "target", triple, "release", name)


def folder(kind, name):
    path = os.path.join(ROOT, kind, name)
    os.makedirs(path, exist_ok=True)
    return path


def findings(name):
    """What is wrong: slow inputs, which libFuzzer keeps too, are no fault as long as they end."""
    return [file for file in os.listdir(folder("artifacts", name)) if not file.startswith("slow-unit-")]


def read_page():
    """The text before the table, and its rows by target."""
    with open(PAGE, encoding="utf-8") as file:
        head, _, table = file.read().partition("| target |")
    rows = {}
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = dict(zip(COLUMNS, cells))
    return head, rows


def write_page(head, rows):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * 5 + "---|" * 3]
    lines += ["| " + " | ".join(rows[name][column] for column in COLUMNS) + " |" for name in TARGETS if name in rows]
    with open(PAGE + ".new", "w", encoding="utf-8") as file:
        file.write(head + "\n".join(lines) + "\n")
    os.replace(PAGE + ".new", PAGE)


def run(name, seconds, log):
    """Runs a target for wall-clock seconds: its exit code and the seconds it was on a processor."""
    corpus, artifacts = folder("corpus", name), folder("artifacts", name)
    command = ["nice", "-n", "15", program(name), corpus, os.path.join(ROOT, "seeds", name),
               f"-max_total_time={max(1, round(seconds))}", f"-timeout={TIMEOUT}", "-rss_limit_mb=4096",
               "-print_final_stats=1", f"-artifact_prefix={artifacts}/"]
    child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(f"/dev/shm/bench-fuzz-{child.pid}", ignore_errors=True)
    return child.returncode, usage.ru_utime + usage.ru_stime


def entry(name, before, spent, text):
    """A row of the page after a slice that printed `text`."""
    def last(pattern):
        found = re.findall(pattern, text)
        return int(found[-1]) if found else 0
    corpus = [os.path.getsize(file.path) for file in os.scandir(folder("corpus", name))]
    runs = last(r"stat::number_of_executed_units: *(\d+)") or last(r"#(\d+)\t")
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "target": name,
        "CPU seconds": str(round(float(before.get("CPU seconds", 0)) + spent)),
        "executions": str(int(before.get("executions", 0)) + runs),
        "edges": str(last(r"cov: (\d+)")),
        "of": str(last(r"\((\d+) inline 8-bit counters\)")),
        "corpus": f"{len(corpus)}, {sum(corpus) // 1000} kB",
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "findings": str(len(findings(name))),
    }


def campaign(args):
    failed = set()
    while True:
        left = {}
        for name in args.targets:
            done = float(read_page()[1].get(name, {}).get("CPU seconds", 0))
            if name not in failed and done + 1 < args.seconds:
                left[name] = args.seconds - done
        if not left:
            break
        # Slices of all targets in turn: a run that is ended early has reached all of them.
        for name, seconds in left.items():
            with tempfile.TemporaryFile("w+", errors="replace") as log:
                code, spent = run(name, min(SLICE, seconds), log)
                log.seek(0)
                text = log.read()
            head, rows = read_page()
            rows[name] = entry(name, rows.get(name, {}), spent, text)
            write_page(head, rows)
            row = rows[name]
            print(f"{name}: {spent:.0f} s, in all {row['CPU seconds']} s and {row['executions']} executions, "
                  f"{row['edges']} edges", flush=True)
            if code != 0:
                failed.add(name)
                print("\n".join(text.splitlines()[-40:]), flush=True)
    found = [name for name in args.targets if name in failed or findings(name)]
    if found:
        sys.exit(f"findings: {' '.join(found)} (fuzz/artifacts)")


def edges_of(control):
    """How many edges each input of a merge was the first to reach, smaller ones before: what libFuzzer notes in a control file."""
    lines = iter(control.splitlines())
    n, _ = int(next(lines)), next(lines)
    paths = [next(lines) for _ in range(n)]
    found = dict.fromkeys(paths, 0)
    for line in lines:
        kind, at, *numbers = line.split()
        if kind == "COV":
            found[paths[int(at)]] += len(numbers)
    return found


def write_seeds(args):
    """Adds to the seeds of each target the few inputs of its corpus that reach most."""
    for name in args.targets:
        seeds, corpus = folder("seeds", name), folder("corpus", name)
        with tempfile.TemporaryDirectory() as scratch:
            control, empty = os.path.join(scratch, "control"), os.path.join(scratch, "empty")
            os.mkdir(empty)
            subprocess.run([program(name), "-merge=1", f"-merge_control_file={control}", f"-timeout={TIMEOUT}", empty, seeds,
                            corpus], check=True, stderr=subprocess.DEVNULL)
            with open(control, encoding="utf-8") as file:
                found = edges_of(file.read())
        found = {path: n for path, n in found.items() if not path.startswith(seeds)}
        room, n = args.seconds * 1000, 0
        for path in sorted(found, key=lambda path: (-found[path], os.path.getsize(path)))[:MOST_SEEDS]:
            room -= os.path.getsize(path)
            if found[path] == 0 or room < 0:
                break
            shutil.copy(path, os.path.join(seeds, os.path.basename(path)[:8]))
            n += 1
        print(f"{name}: {n} seeds more")


def main():
    args = parse()
    build(args.targets, args.sanitizer)
    if args.seeds:
        write_seeds(args)
    else:
        campaign(args)


if __name__ == "__main__":
    main()
