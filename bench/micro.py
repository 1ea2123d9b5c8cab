#!/usr/bin/env python3
"""The micro workloads in PyTorch, beside `ccks-bench micro`, in one run: eager, torch.compile, CUDA graph.

Prints JSON lines, ours and PyTorch's, then a table. PyTorch's `us` is the time between two CUDA events around the call, `wall_us` from the
call to the end of a synchronize; ours is from submit to done. Every arm is held against float64 first. Without PyTorch or a GPU
its lines are missing and the table says so.
usage: bench/micro.py [--ccks-bench build/bench/ccks-bench] [--runs N] [--no-torch]
"""
import argparse
import json
import math
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # importing leaves nothing in the tree
import table  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def chain200(torch, dtype, device):
    x = torch.randn(64, 64, device=device, dtype=dtype)

    def run(x):
        for _ in range(100):
            x = x * 1.0001
            x = x + 0.5
        return x
    return run, [x]


def mlp(batch):
    def make(torch, dtype, device):
        x = torch.randn(batch, 256, device=device, dtype=dtype)
        weights = [torch.randn(256, 256, device=device, dtype=dtype) / 16 for _ in range(6)]
        biases = [torch.randn(256, device=device, dtype=dtype) for _ in range(6)]

        def run(x, *parameters):
            for w, b in zip(parameters[:6], parameters[6:]):
                x = torch.nn.functional.gelu(x @ w + b, approximate="tanh")
            return x
        return run, [x, *weights, *biases]
    return make


def attn8(torch, dtype, device):
    x, k, v = (torch.randn(4, 8, 16, 64, device=device, dtype=dtype) for _ in range(3))

    def run(q, k, v):
        for _ in range(8):
            p = torch.softmax((q @ k.transpose(-1, -2)) * 0.125, -1)
            q = torch.relu(p @ v) + q
        return q
    return run, [x, k, v]


WORKLOADS = {"micro/chain200": chain200, "micro/mlp6x256_B1": mlp(1), "micro/mlp6x256_B8": mlp(8), "micro/attn8": attn8}


def names_of(known):
    """Of an option: names with commas between them, or nothing."""
    def parse(text):
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return names
    return parse


def folder(path):
    """Of an option: a folder, which is made where it is not there."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make {path}: {error.strerror}") from error
    return path


def not_compiled(result):
    """Why ccks-run has run the program by generic workers, which take tens of times as long, since it could not compile its own; or nothing."""
    notice = result.get("code", {}).get("notice", "")
    return notice if notice.startswith("not compiled") else ""


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(p * len(ordered)))) - 1]


def as_graph(torch, function):
    """The call as one CUDA graph; outputs are those of the capture."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replay():
        graph.replay()
        return result
    return replay


def measure(torch, function, runs, warm=10, before=lambda: None):
    """Microseconds of each call, between two events around it and by the host's clock (both by that without CUDA); `warm` calls in front of them
    are not counted, nor is what `before` does in front of each."""
    cuda = torch.cuda.is_available()
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    for _ in range(warm):
        before()
        function()
    between, wall = [], []
    for _ in range(runs):
        events = [torch.cuda.Event(True), torch.cuda.Event(True)] if cuda else []
        before()
        synchronize()
        since = time.perf_counter()
        for event in events[:1]:
            event.record()
        function()
        for event in events[1:]:
            event.record()
        synchronize()
        wall.append((time.perf_counter() - since) * 1e6)
        between.append(events[0].elapsed_time(events[1]) * 1e3 if cuda else wall[-1])
    return between, wall


def torch_arms(torch, run, arguments):
    def eager():
        return run(*arguments)
    yield "eager", lambda: eager
    yield "graph", lambda: as_graph(torch, eager)
    for name, options in (("compile", {}), ("compile reduce-overhead", {"mode": "reduce-overhead"})):
        def compiled(options=options):
            torch._dynamo.reset()
            function = torch.compile(run, fullgraph=True, **options)
            return lambda: function(*arguments)
        yield name, compiled


def torch_lines(names, runs, fields):
    import torch
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        for name in names:
            run, arguments = WORKLOADS[name](torch, torch.float32, "cuda")
            want = run(*(a.double().cpu() for a in arguments))
            for arm, build in torch_arms(torch, run, arguments):
                try:
                    function = build()
                    got = function().double().cpu()
                except Exception as error:  # an arm that PyTorch does not have here is no failure of the bench
                    print(f"{name}, torch {arm}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
                    continue
                wrong = ((got - want).abs() / (want.abs() + 1)).max().item()
                if not wrong < 1e-3:
                    raise SystemExit(f"{name}, torch {arm}: off by {wrong}")
                between, wall = measure(torch, function, runs)
                yield {"bench": name, "arm": "torch " + arm, **fields, "device": torch.cuda.get_device_name(),
                       "torch": torch.__version__, "max_rel_err": wrong,
                       "us_p50": round(percentile(between, 0.5), 2), "us_p99": round(percentile(between, 0.99), 2),
                       "us_max": round(max(between), 2), "wall_us_p50": round(percentile(wall, 0.5), 2), "runs": runs}


def our_lines(program, runs, status):
    done = subprocess.run([program, "micro", "--runs", str(runs)], stdout=subprocess.PIPE, text=True)
    status.append(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def torch_here():
    try:
        import torch
        return torch.cuda.is_available()
    except ImportError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ccks-bench", default=os.path.join(ROOT, "build/bench/ccks-bench"))
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    status, lines = [], []
    for line in our_lines(args.ccks_bench, args.runs, status):
        lines.append(line)
        print(json.dumps(line), flush=True)
    fields = {key: lines[0][key] for key in ("commit", "machine") if lines}
    if args.no_torch or not torch_here():
        print("no PyTorch with a GPU: nothing beside ours", file=sys.stderr)
    else:
        for line in torch_lines(list(WORKLOADS), args.runs, fields):
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(table.micro(lines), file=sys.stderr)
    return status[0]


if __name__ == "__main__":
    sys.exit(main())
