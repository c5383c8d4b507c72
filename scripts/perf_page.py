"""The page of scripts/perf_vs_llama_server.py: a Markdown table with targets, and a plot.

Not a program: `write` is called with the raw figures.
"""

import statistics
from html import escape

from chart import chart

# Figure: its name, its unit, whether more is better, and the target of the ratio.
FIGURES = {
    "load": ("start of the server to its first healthy response", "s", False, 0.7),
    "first_cold": ("time to first token, 512-token prompt", "s", False, None),
    "prefill": ("prefill 512", "tokens/s", True, 1.05),
    "first_shared": ("time to first token, second client with a shared prefix of 500 tokens", "s", False, 0.5),
    "first_shared_busy": ("the same while the first completion is running", "s", False, None),
    "decode": ("decode, 1 client", "tokens/s", True, 1.05),
    "gap_p50": ("time between tokens, 1 client, p50", "ms", False, None),
    "gap_p99": ("time between tokens, 1 client, p99", "ms", False, None),
    "total_1": ("throughput, 1 client", "tokens/s", True, None),
    "total_2": ("throughput, 2 clients", "tokens/s", True, None),
    "total_4": ("throughput, 4 clients", "tokens/s", True, None),
    "total_8": ("throughput, 8 clients", "tokens/s", True, 1.2),
    "stall_p99": ("time between tokens of 4 completions while two 2000-token prompts arrive, p99", "ms", False, 0.5),
    "stall_max": ("the same, maximum", "ms", False, None),
    "first_long": ("time to first token of those prompts", "s", False, None),
    "peak": ("peak resident memory, 8 sequences of 1024 positions", "MB", False, 0.8),
    "tiny_decode": ("decode of the built-in model", "tokens/s", True, 2.0),
}
# Figures of the engine alone; the last has a separate target.
ENGINE = {
    "engine_prefill": ("prefill 512", "tokens/s"),
    "engine_decode": ("decode", "tokens/s"),
    "bandwidth": ("measured memory read bandwidth", "GB/s"),
    "share": ("decode: bytes read per second, relative to that bandwidth", ""),
}
SHARE_TARGET = ("f16", 0.9)
NAMES = {"ours": "bench", "llama-server": "llama-server"}


def number(value):
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 0
    while digits < 4 and abs(value) * 10**digits < 100:
        digits += 1
    return f"{value:.{digits}f}"


def shown(values):
    """Median, with the range if there are several values."""
    if not values:
        return "failed"
    text = number(statistics.median(values))
    if len(values) > 1:
        text += f" ({number(min(values))}–{number(max(values))})"
    return text


def rows(values):
    """Lines of the table of a model."""
    for figure, (name, unit, is_more_better, target) in FIGURES.items():
        found = values.get(figure)
        if found is None:
            continue
        ours, theirs = found.get("ours", []), found.get("llama-server", [])
        ratio, verdict = "", ""
        if ours and theirs:
            value = statistics.median(ours) / statistics.median(theirs)
            ratio = f"{value:.2f}"
            if target is not None:
                is_met = value >= target if is_more_better else value <= target
                verdict = "met" if is_met else "**not met**"
        aim = "" if target is None else f"{'≥' if is_more_better else '≤'} {target}"
        yield f"| {name}, {unit} | {shown(ours)} | {shown(theirs)} | {ratio} | {aim} | {verdict} |"


def engine_rows(model, values):
    for figure, (name, unit) in ENGINE.items():
        found = values.get(figure, {}).get("ours")
        if found is None:
            continue
        aim = verdict = ""
        if (model, figure) == (SHARE_TARGET[0], "share"):
            aim = f"≥ {SHARE_TARGET[1]}"
            verdict = "met" if statistics.median(found) >= SHARE_TARGET[1] else "**not met**"
        yield f"| engine alone: {name}{', ' if unit else ''}{unit} | {shown(found)} | | | {aim} | {verdict} |"


def tables(report):
    parts = []
    for model, values in report["values"].items():
        title = "The built-in model" if model == "tiny" else f"{report['about']['model']}, {model}"
        head = "| figure | bench | llama-server | ratio | target | |\n|---|---|---|---|---|---|"
        lines = [*rows(values), *engine_rows(model, values)]
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(lines))
    if report["failures"]:
        lines = [f"- {f['model']}, {f['server']}, {f['phase']}: {f['reason'][:300]}" for f in report["failures"]]
        parts.append("## Failed\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def page(report):
    about = report["about"]
    return f"""# Measured against llama-server

Written by `scripts/perf_vs_llama_server.py`; do not edit. Values are medians over {about['repeats']} alternating runs of both servers
with {about['threads']} threads; the range is in brackets. The ratio is `bench` over llama-server. Targets are this project's own, for the ratio or, where there is none, for
the value of `bench`. Rows of the engine alone are measured by `bench perf`, without HTTP.

![Tokens per second over clients](performance.svg)

{tables(report)}

## How

| | |
|---|---|
| date | {about['date']} |
| machine | {about['processor']}, {about['cores']} cores, {about['memory_gb']} GB; {about['system']} |
| load average before and after | {about['load_before']:.2f}, {about['load_after']:.2f} |
| bench | {about['ours']}, {about['commit']} |
| llama-server | {about['llama_server']} |
| command | `{about['command']}` |

Both servers get the same requests over the same API, with greedy decoding that ignores end-of-sequence tokens; both have an f16 KV cache. Load, prompts, clients
and memory are measured with 8 sequences of 1024 positions, long prompts with 6 of 4096, the built-in model with one of 512. The shared prefix is a system
message. The first client's completion has ended when the second client starts; in the row after that it is still running. Times between tokens are measured
at the client.
"""


# ---------------------------------------------------------------- the plot

WIDTH, HEIGHT = 340, 240


def panel(model, values, at):
    """Throughput over the number of clients, as a chart at this place of the row; none where nothing was measured."""
    points = {int(figure.removeprefix("total_")): found for figure, found in values.items() if figure.startswith("total_")}
    series = [(name, [(n, statistics.median(found[kind])) for n, found in sorted(points.items()) if found.get(kind)]) for kind, name in NAMES.items()]
    clients, values = sorted(points), [value for _, line in series for _, value in line]
    if not values:
        return ""
    top, last = 1.1 * max(values), max(len(clients) - 1, 1)
    x = (lambda n: clients.index(n) / last, [(n, n) for n in clients])
    y = (lambda value: value / top, [(top * part / 4, f"{top * part / 4:.0f}") for part in range(5)])
    return chart(f"tokens/s, {escape(model)}", "clients", x, y, series, WIDTH, HEIGHT, f'x="{at * WIDTH}" width="{WIDTH}" height="{HEIGHT}" ')


def plot(report):
    models = [(model, values) for model, values in report["values"].items() if any(figure.startswith("total_") for figure in values)]
    panels = "".join(panel(model, values, at) for at, (model, values) in enumerate(models))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(models)} {HEIGHT}">\n{panels}</svg>\n'


def write(report, folder):
    """Writes performance.md and performance.svg; returns the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "performance.md").write_text(page(report))
    (folder / "performance.svg").write_text(plot(report))
    return tables(report)
