"""What benches of one layer beside PyTorch share (moe_layer.py, ragged_encoder.py): a line for each arm, once its values are right, and a table of ops.

Who holds values against PyTorch's exits 77 where numpy or torch are missing.
"""
import collections
import json
import subprocess

import micro

try:
    import numpy
    import torch
except ImportError:  # run() and arm_options() need neither
    numpy = torch = None


def difference(y, want, sure=slice(None)):
    """The largest one, against the largest of its row, over the rows that `sure` picks."""
    return ((y.float() - want).abs().amax(-1) / want.abs().amax(-1))[sure].max().item()


def load(path):
    """The tensor of a .npy file; two bytes of no type are a bf16."""
    values = numpy.load(path)
    if values.dtype.kind != "V":
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(numpy.int16).copy()).view(torch.bfloat16)


def torch_line(how, function, runs, error):
    times, _ = micro.measure(torch, function, runs, warm=5)
    return {"arm": f"torch {how}", "torch": torch.__version__,
            "us": {"p50": micro.percentile(times, 0.5), "p99": micro.percentile(times, 0.99), "max": max(times)}, "error": error}


def arm_options(arm):
    """As ccks-run has them: `reactive` is a policy of the co-pilot, `tiles` one that makes no lists; `replay`, `replay_tiles` and `replay_reactive` take decisions that
    a run of the same has recorded."""
    copilot = ["--arm", "copilot"]
    return {"reactive": [*copilot, "--policy", "reactive"], "tiles": [*copilot, "--spine", "tiles"], "replay": copilot,
            "replay_tiles": [*copilot, "--spine", "tiles"], "replay_reactive": [*copilot, "--policy", "reactive"]}.get(arm, ["--arm", arm])


def run(arm, command, work, timeout):
    """What ccks-run prints; of a replay the second run, which takes its decisions from the first. RuntimeError: it failed, or its code is not the program's own."""
    for more in [["--record", f"{work}/record"], ["--replay", f"{work}/record"]] if arm.startswith("replay") else [[]]:
        try:
            done = subprocess.run(command + more, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as late:
            said = late.stderr.decode() if isinstance(late.stderr, bytes) else late.stderr or ""
            raise RuntimeError(f"not done after {timeout:.0f} s (--timeout; code is compiled in it where no cache has it). {said.strip()[-200:]}") from late
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip()[-300:] or f"exit code {done.returncode}")
    result = json.loads(done.stdout)
    if reason := micro.not_compiled(result):
        raise RuntimeError(f"by generic workers: {reason}")
    return result


def our_line(args, arm, command, work, error_of, tolerance):
    """Of one process, which puts out y of its last run; `error_of` gives what y is off by."""
    out = f"{work}/y.npy"
    result = run(arm, command + ["--iters", str(args.iters), "--output", f"y={out}"], work, args.timeout)
    wrong = error_of(load(out))
    if not wrong <= tolerance:
        return {"arm": arm, "failed": f"off by {wrong}, allowed {tolerance}"}
    return {"arm": arm, "code": result["code"]["kind"], "us": result["us"], "error": wrong, "scheduler": result["scheduler"]}


def op_lines(command, label, work, timeout):
    """Of one run in the middle: per op, microseconds of bodies and of waiting averaged over the workers, and when it began and ended."""
    done = subprocess.run(command + ["--iters", "12", "--trace", f"{work}/trace.json"], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        return [f"no table: {done.stderr.strip()[-300:]}"]
    workers = json.loads(done.stdout)["workers"]
    with open(f"{work}/trace.json") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "task"]
    runs = sorted({e["args"]["run"] for e in events})
    of_run = [e for e in events if e["args"]["run"] == runs[-3]]
    start, kinds = min(e["ts"] for e in of_run), collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0, 1e30, 0.0])
    for event in of_run:
        kind, body = kinds[event["name"]], event["dur"] - event["args"]["wait_us"]
        kind[0] += 1
        kind[1] += body / workers
        kind[2] += event["args"]["wait_us"] / workers
        kind[3] = max(kind[3], body)
        kind[4] = min(kind[4], event["ts"] + event["args"]["wait_us"] - start)
        kind[5] = max(kind[5], event["ts"] + event["dur"] - start)
    lines = [f"{'op, ' + label:<32}{'tasks':>8}{'bodies us':>11}{'waiting us':>12}{'longest us':>12}{'first us':>10}{'end us':>10}"]
    return lines + [f"{name:<32}{k[0]:>8}{k[1]:>11.1f}{k[2]:>12.1f}{k[3]:>12.1f}{k[4]:>10.1f}{k[5]:>10.1f}" for name, k in sorted(kinds.items(), key=lambda i: i[1][4])]
