#!/usr/bin/env python3
"""Where a reaction's time goes, from a timeline of `ccks-bench reaction --trace`: medians of each stage, in microseconds.

Ops come in pairs: one reports, the tiles of the next exist as far as the report says. Device times are those of the GPU's clock, laid
over the host's with an error of about a microsecond, so `to the decision` and `to the worker` may share one; their sum has no error.
usage: bench/stages.py TIMELINE.json [SKIPPED_RUNS]
"""
import json
import sys


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def number(name):
    return int(name.removeprefix("op")) if name.startswith("op") else -1


def read(path):
    """(run, op) -> its tasks; (run, op) -> when it was decided. Runs are numbered by their epochs, one run at a time."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    tasks, decided = {}, {}
    for event in events:
        if event.get("cat") == "task":
            tasks.setdefault((event["args"]["slot"], event["args"]["run"], number(event["name"])), []).append(event)
        elif event.get("cat") == "decision":
            decided.setdefault(number(event["name"]), []).append(event["ts"])
    return tasks, {op: sorted(times) for op, times in decided.items()}


def stages(tasks, decided, skipped):
    out = {"report's body ends, to the decision": [], "decision, to a worker's gate": [], "gate, to the body's end": [],
           "all of it": []}
    for (slot, run, op), reports in tasks.items():
        called = tasks.get((slot, run, op + 1))
        if op < 0 or op % 2 != 0 or called is None or run < skipped:
            continue
        end = max(t["ts"] + t["dur"] for t in reports)
        for task in called:
            # The gate may begin early with a tile that was sent ahead; it was let through at ts + wait.
            gate = task["ts"] + task["args"]["wait_us"]
            before = [t for t in decided.get(op + 1, []) if end - 1 <= t <= gate + 3]
            if not before:
                continue
            decision = before[-1]
            out["report's body ends, to the decision"].append(decision - end)
            out["decision, to a worker's gate"].append(gate - decision)
            out["gate, to the body's end"].append(task["ts"] + task["dur"] - gate)
            out["all of it"].append(task["ts"] + task["dur"] - end)
    return out


def main():
    tasks, decided = read(sys.argv[1])
    found = stages(tasks, decided, int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    for name, values in found.items():
        if values:
            print(f"{name:40s} p10 {quantile(values, 0.1):7.2f}  p50 {quantile(values, 0.5):7.2f}  p90 {quantile(values, 0.9):7.2f}  n {len(values)}")


if __name__ == "__main__":
    main()
