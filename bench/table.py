#!/usr/bin/env python3
"""Tables from result files: every figure beside its goal.

Where several files say the same thing the last one counts.
"""
import argparse
import json
import os
import re
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
README = os.path.join(ROOT, "bench/README.md")
BEGIN, END = "<!-- results: made by bench/table.py -->", "<!-- end of results -->"


def commit():
    """Of the tree as it is; what a build was configured with may be older."""
    named = os.environ.get("CCKS_COMMIT")
    if named or not shutil.which("git"):
        return named or "unknown"
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def text(value):
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def markdown(head, rows):
    """A table that reads well as text, too."""
    cells = [[text(c) for c in row] for row in [head] + rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def verdict(value, goal, at_most=True):
    if value is None:
        return "not measured"
    return "yes" if (value <= goal if at_most else value >= goal) else "no"


def of(lines, bench, arm=None):
    return [l for l in lines if l["bench"] == bench and (arm is None or l["arm"] == arm)]


def value(lines, bench, arm, key):
    found = of(lines, bench, arm)
    return found[-1].get(key) if found else None


def micro(lines):
    names = list(dict.fromkeys(l["bench"] for l in lines if l["bench"].startswith("micro/")))
    if not names:
        return ""
    rows = []
    for name in names:
        ours = sorted((l for l in of(lines, name) if not l["arm"].startswith("torch")), key=lambda l: l["us_p50"])
        theirs = sorted((l for l in of(lines, name) if l["arm"].startswith("torch")), key=lambda l: l["us_p50"])
        copilot = value(lines, name, "copilot", "us_p50")
        goal = next((l["goal_us"] for l in ours), None)
        others = ", ".join(f"{l['arm']} {text(l['us_p50'])}" for l in ours if l["arm"] != "copilot")
        best = theirs[0] if theirs else None
        rows.append([name, goal, copilot, value(lines, name, "copilot", "us_p99"), verdict(copilot, goal) if goal else "-", others or "-",
                     f"{best['arm'][6:]} {text(best['us_p50'])} (wall {text(best['wall_us_p50'])})" if best else "-"])
    return markdown(["workload, us", "goal", "copilot p50", "p99", "met", "other arms, p50", "PyTorch's best, p50"], rows)


def goals(lines):
    """One row a goal of the benches that have one."""
    rows = []
    raw = value(lines, "reaction", "raw ping-pong", "ns_p50")
    for arm in ("lookahead, another worker", "reactive, another worker"):
        p50, p99 = value(lines, "reaction", arm, "ns_p50"), value(lines, "reaction", arm, "ns_p99")
        if raw and p50:
            paced = value(lines, "reaction", "raw ping-pong, paced", "ns_p99")
            rows.append([f"reaction, {arm}", "p50 <= 1.2x raw", f"{p50:.0f} ns, {p50 / raw:.2f}x of {raw:.0f}", verdict(p50 / raw, 1.2)])
            if paced:
                period = value(lines, "reaction", "raw ping-pong, paced", "period_ns") / 1000
                rows.append([f"reaction, {arm}", "p99 <= 2x raw's", f"{p99:.0f} ns, {p99 / paced:.2f}x of {paced:.0f} (a round each {period:.1f} us)", verdict(p99 / paced, 2)])
            rows.append([f"reaction, {arm}", "beside it", f"p99 {p99 / raw:.2f}x raw's p50", "-" if paced else verdict(p99 / raw, 2)])
    for line in of(lines, "reaction"):
        if "late_ns_p99" in line:  # no goal: what of the p99 above is nobody's work
            rows.append([line["arm"], "-", f"{line['per_s']:.0f} a second, p50 {line['ns_p50']:.0f} ns: 1 % of moments wait over {line['late_ns_p99']:.0f} ns", "-"])
    for line in of(lines, "litmus"):
        rows.append([f"litmus {line['arm']}", "1e9 trials, 0 wrong", f"{line['trials']:.3g} trials, {line['wrong']} wrong, {line['seconds']:.1f} s",
                     "yes" if line["wrong"] == 0 and line["trials"] >= 1e9 else "no"])
    for line in of(lines, "handoff"):
        p99 = line.get("us_p99")
        if line["arm"].startswith("load alone"):
            rows.append([f"handoff, {line['arm']}", "beside it", f"p50 {text(line.get('us_p50'))}, p99 {text(p99)} us: {line['image_bytes'] / 1000:.0f} KB, nobody resident", "-"])
            continue
        whole = line["arm"].endswith("whole workers")
        rows.append([f"handoff, {line['arm']}", "beside it" if whole else "p99 <= 300 us, 0 lost", f"p50 {text(line.get('us_p50'))}, p99 {text(p99)} us, {text(line.get('lost'))} lost",
                     "-" if whole else "yes" if p99 and p99 <= 300 and line.get("lost") == 0 else "no"])
    rows += dispatch(lines)
    return markdown(["bench", "goal", "measured", "met"], rows) if rows else ""


def dispatch(lines):
    rows = []
    for line in of(lines, "dispatch"):
        layer, rate = line.get("ns_per_layer_p50"), line.get("million_tasks_per_second_p50")
        if line.get("device", "host") == "host":
            continue  # stub workers and host threads: another question
        if layer is not None:
            aim = re.search("copilot|static|lookahead", line["arm"]) and "one run" in line["arm"]
            rows.append([f"dispatch, {line['arm']}", "<= 800 ns a layer" if aim else "beside it", f"{layer:,.0f} ns a layer",
                         verdict(layer, 800) if aim else "-"])
        elif rate is not None:
            rows.append([f"dispatch, {line['arm']}", ">= 100 M tasks/s", f"{rate:.3g} M tasks/s", verdict(rate, 100, at_most=False)])
    return rows


def crossover(lines):
    found = of(lines, "crossover")
    if not found:
        return ""
    arms = list(dict.fromkeys(l["arm"] for l in found))
    level = {arm for arm in arms if len({l["delay_us"] for l in found if l["arm"] == arm}) == 1}
    rows = []
    for key in sorted({(l["program"], l["task_us"]) for l in found}):
        here = [l for l in found if (l["program"], l["task_us"]) == key]
        delays = sorted({l["delay_us"] for l in here})
        at = {(l["arm"], l["delay_us"]): l["us_p50"] for l in here}

        def best(delay):
            times = {arm: at.get((arm, delays[0] if arm in level else delay)) for arm in arms}
            return min((t, arm) for arm, t in times.items() if t is not None)[1]
        rows.append([*key, here[0]["ideal_us"], *(at.get((arm, delays[0])) for arm in arms), ", ".join(f"{d:g}: {best(d)}" for d in delays)])
    head = ["crossover", "task us", "bodies alone us", *(f"{arm} us" for arm in arms), "fastest by delay of the link, us"]
    return markdown(head, rows)


def scheduling(lines):
    """What each arm spends on scheduling, for tasks of one length over the link as it is; and what a decision writes to the link."""
    found = [l for l in of(lines, "crossover") if "gpu_us_outside_bodies_a_run" in l]
    if not found:
        return ""
    length = min((l["task_us"] for l in found), key=lambda us: abs(us - 5))
    delay = min(l["delay_us"] for l in found)
    rows = [[f"{l['program']}, {l['arm']}", l["us_p50"], l["atomics_a_run"], l["gpu_us_outside_bodies_a_run"], l["scheduler_us_a_run"],
             l["sent_a_run"], l["records_a_run"]] for l in found if l["task_us"] == length and l["delay_us"] == delay]
    head = [f"tasks of {length:g} us, a run", "us", "atomics in GPU memory", "GPU us outside bodies, all workers", "scheduler thread us",
            "tasks sent or launches", "records"]
    out = markdown(head, rows)
    writes = [l for _, l in sorted({l["decisions_a_publication"]: l for l in of(lines, "link_writes")}.items())]
    if writes:
        cells = [f"{l['lines_a_decision']:.3g}" for l in writes]
        out += "\n\n" + markdown(["decisions of a publication to one worker", *(f"{l['decisions_a_publication']:g}" for l in writes)],
                                 [["64-byte lines on the link a decision", *cells]])
    return out


def tables(lines, sources):
    """`sources`: of each file its name and the GPU whose it is (gpu_of)."""
    parts = [", ".join(f"`{name}`: {gpu}" for name, gpu in sources)] if lines else []
    parts += [part for part in (goals(lines), micro(lines), crossover(lines), scheduling(lines)) if part]
    return "\n\n".join(parts)


def gpu_of(lines):
    return next((l["device"] for l in lines if "NVIDIA" in str(l.get("device", ""))), lines[0].get("machine", "?"))


def merged(lines):
    """Of lines that say the same the last one."""
    def key(line):
        same = tuple(line.get(name) for name in ("bench", "arm", "workers", "program", "task_us", "delay_us"))
        return same + (line["decisions_a_publication"],) if line["bench"] == "link_writes" else same
    return list({key(line): line for line in lines}.values())


def read(paths):
    lines = []
    for path in paths:
        with open(path) as file:
            lines += [json.loads(text) for text in file if text.startswith("{")]
    return merged(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="what ccks-bench and the scripts beside this have printed")
    parser.add_argument("--readme", action="store_true", help="put the tables into bench/README.md, between the markers, instead of printing them")
    args = parser.parse_args()
    try:
        lines = read(args.files)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    out = tables(lines, [(os.path.basename(path), gpu_of(read([path]))) for path in args.files])
    if not args.readme:
        print(out)
        return
    with open(README) as file:
        readme = file.read()
    put = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: f"{BEGIN}\n{out}\n{END}", readme, flags=re.S)
    with open(README, "w") as file:
        file.write(put)


if __name__ == "__main__":
    main()
