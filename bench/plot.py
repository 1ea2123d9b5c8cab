#!/usr/bin/env python3
"""The crossover bench as an SVG: time of a run over what its bodies alone take, against the delay added to the link.

One panel for each program and length of task. Below each panel the arm that is fastest at each delay: where the co-pilot wins and where
it loses. Arms that do not feel the link are level, dashed lines.
usage: bench/plot.py FILE.jsonl OUT.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP_X, GAP_Y = 230, 170, 70, 78, 34, 92
COLOURS = {"static": "#4477aa", "lookahead": "#cc3311", "reactive": "#ee8866", "gpu_queue": "#228833", "stream": "#777777",
           "graph": "#aa3377", "graph_pdl": "#66ccee"}


def text(x, y, words, size=11, anchor="start", colour="#222", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" {extra}>{words}</text>')


def series(points):
    """arm -> delay -> time of a run over its ideal; level arms at every delay."""
    delays = sorted({p["delay_us"] for p in points})
    arms = {}
    for p in points:
        arms.setdefault(p["arm"], {})[p["delay_us"]] = p["us_p50"] / max(p["ideal_us"], 1e-9)
    level = {arm for arm, values in arms.items() if len(values) == 1 and len(delays) > 1}
    for arm in level:
        only = next(iter(arms[arm].values()))
        arms[arm] = {delay: only for delay in delays}
    return delays, arms, level


def panel(points, x0, y0, most, title, first):
    delays, arms, level = series(points)
    last = max(delays) or 1

    def x(delay):
        return x0 + delay / last * WIDTH

    def y(ratio):
        return y0 + HEIGHT - math.log(max(ratio, 1)) / math.log(most) * HEIGHT
    out = [f'<rect x="{x0}" y="{y0}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>', text(x0, y0 - 8, title, 12)]
    tick = 1
    while tick <= most:
        out.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#eee"/>')
        out.append(text(x0 - 5, y(tick) + 4, f"{tick}x", 10, "end"))
        tick *= 2
    for delay in delays:
        out.append(text(x(delay), y0 + HEIGHT + 14, f"{delay:g}", 10, "middle"))
    for arm, values in arms.items():
        way = " ".join(f"{x(d):.1f},{y(r):.1f}" for d, r in sorted(values.items()))
        dash = ' stroke-dasharray="5 3"' if arm in level else ""
        out.append(f'<polyline points="{way}" fill="none" stroke="{COLOURS.get(arm, "#000")}" stroke-width="2"{dash}/>')
    if first:
        out.append(text(x0 - 12, y0 + HEIGHT + 43, "fastest", 10, "end"))
    named, edge = None, -1e9  # an arm is named where it takes over, if there is room
    for delay in sorted(delays):
        best = min((values[delay], arm) for arm, values in arms.items() if delay in values)[1]
        out.append(f'<circle cx="{x(delay):.1f}" cy="{y0 + HEIGHT + 40}" r="5" fill="{COLOURS.get(best, "#000")}"/>')
        if best != named and x(delay) - 5 >= edge:
            out.append(text(x(delay) - 5, y0 + HEIGHT + 57, best, 8))
            named, edge = best, x(delay) + 5 * len(best)
    return out


def draw(lines):
    programs = list(dict.fromkeys(l["program"] for l in lines))
    lengths = sorted({l["task_us"] for l in lines})
    most = 2 ** math.ceil(math.log2(max(2, max(l["us_p50"] / max(l["ideal_us"], 1e-9) for l in lines))))
    arms = list(dict.fromkeys(l["arm"] for l in lines))
    width = LEFT + max(len(lengths) * (WIDTH + GAP_X), len(arms) * 110, 680) + 10
    height = TOP + len(programs) * (HEIGHT + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(LEFT, 22, "Time of a run over what its bodies alone take, against the delay added to the link each way, us", 14)]
    for i, arm in enumerate(arms):
        at = LEFT + i * 110
        out.append(f'<line x1="{at}" x2="{at + 22}" y1="42" y2="42" stroke="{COLOURS.get(arm, "#000")}" stroke-width="3"/>')
        out.append(text(at + 27, 46, arm, 12))
    for row, program in enumerate(programs):
        for column, length in enumerate(lengths):
            points = [l for l in lines if l["program"] == program and l["task_us"] == length]
            if points:
                out += panel(points, LEFT + column * (WIDTH + GAP_X), TOP + row * (HEIGHT + GAP_Y), most, f"{program}, tasks of {length:g} us",
                             column == 0)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    with open(sys.argv[1]) as file:
        lines = [json.loads(line) for line in file if line.startswith("{")]
    lines = [l for l in lines if l["bench"] == "crossover"]
    if not lines:
        sys.exit(f"{sys.argv[1]} has no lines of the crossover bench")
    with open(sys.argv[2], "w") as file:
        file.write(draw(lines))


if __name__ == "__main__":
    main()
