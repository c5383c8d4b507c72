"""Line charts as SVG, written by hand: axes with lines across, one polyline per series.

Used by perf_page.py and models/training.
"""

import math

WIDTH, HEIGHT, TOP, RIGHT, BOTTOM, LEFT = 720, 360, 20, 20, 40, 60
COLOURS = ["#1f6feb", "#d1690e", "#7aa7f0", "#eab07c"]


def chart(title, label, x, y, series, width=WIDTH, height=HEIGHT, place=""):
    """x, y: (function from a value to 0..1, [(value, its text)]); series: [(name, points)], named if there are several. `place` are
    attributes of a chart within another picture."""
    def across(value):
        return LEFT + x[0](value) * (width - LEFT - RIGHT)
    def down(value):
        return TOP + (1 - y[0](value)) * (height - TOP - BOTTOM)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {place}viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for v, text in y[1]:
        parts.append(f'<path d="M{LEFT} {down(v):.1f}H{width - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{down(v) + 4:.1f}" text-anchor="end">{text}</text>')
    parts += [f'<text x="{across(v):.1f}" y="{height - 22}" text-anchor="middle">{text}</text>' for v, text in x[1]]
    for i, (name, points) in enumerate(series):
        line = " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.5"/>')
        if len(series) > 1:
            parts.append(f'<text x="{width - RIGHT - 10}" y="{height - BOTTOM - 10 - 16 * (len(series) - 1 - i)}" '
                         f'text-anchor="end" fill="{COLOURS[i]}">{name}</text>')
    parts += [f'<text x="{width / 2}" y="{height - 5}" text-anchor="middle">{label}</text>',
              f'<text x="{width / 2}" y="14" text-anchor="middle">{title}</text>',
              "</svg>"]
    return "\n".join(parts) + "\n"


def loss_svg(points):
    """points: [(step, loss)]; the loss on a logarithmic axis."""
    last, low, high = points[-1][0], 1e-3, 10.0
    return chart("loss on the assistant's tokens, mean of each 20 steps", "step",
                 (lambda step: step / last, [(last * k // 4, last * k // 4) for k in range(5)]),
                 (lambda loss: math.log(max(loss, low) / low) / math.log(high / low),
                  [(v, f"{v:g}") for v in (0.001, 0.01, 0.1, 1, 10)]),
                 [("loss", points)])


def steps_svg(series):
    """series: [(name, [(steps, part right, from 0 to 1)])]; the steps, powers of two, on a logarithmic axis."""
    steps = [s for s, _ in series[0][1]]
    low = math.floor(10 * min(part for _, points in series for _, part in points)) / 10  # the axis begins at full tens
    return chart("held-out questions answered rightly, by the number of steps", "steps",
                 (lambda s: math.log(s / steps[0]) / math.log(steps[-1] / steps[0]), [(s, s) for s in steps]),
                 (lambda part: (part - low) / (1 - low), [(low + (1 - low) * k / 4, f"{100 * low + 25 * (1 - low) * k:.0f} %") for k in range(5)]),
                 series)
