#!/usr/bin/env python3
"""Programs whose values decide what is computed: an encoder that may stop early, one that may stop behind any layer, a net with a stack, one that
thinks as long as it has to, one that reads a sentence in both directions, two over trees, one that grows a tree. ccks under each arm and PyTorch in one
run, over seeded inputs that go different ways, one run after the other.

Arms of ours: copilot (lookahead; what stands under a condition goes out ahead with everything else, and the device finds what must not run), tiles (the
same without lists), reactive (sends what is ready; leaves out what a report has ruled out), static, gpu_queue, and one launch per op: stream and graph, which
wait for no host either, so `graph` is the padded program of ours. replay, replay_tiles, replay_reactive: decisions of a record of the same runs, so
no choosing; they wait for reports that tiles hang on, not for tasks to be ready, and send nothing before its report. PyTorch: eager with
item() where it decides, segments (a CUDA graph between decisions), padded (one CUDA graph of everything, masked). Our times are from the end of
submit(), inputs written, to done; with_inputs_us counts submit() too. PyTorch's inputs lie on the GPU as well. No time is printed unless every run was right: held
against PyTorch in float64, and where PyTorch is left out (--torch '') against the reference interpreter (--verify).
--isolate: many instances in flight, of which one takes long since its values say so (specs/one_long.yaml; --long-times: as many times as long as the others),
each on workers of its own or all on all: latencies of the others while it runs and without it. --seeds N: no times, but N instances of each program with inputs of
their own, some in flight at a time, every one held as above. --ablate moe,ragged: what share of those layers' time is choosing, (copilot - replay) / copilot.
Prints JSON lines, and a table last. Exits 77 without PyTorch or a GPU, 3 if something was wrong. --device host --torch '' needs neither.
usage: bench/control_flow.py [--programs P[,P]] [--arms A[,A]] [--torch eager,segments,padded] [--device cuda|host] [--small] [--seeds N] [--isolate] [--ablate moe,ragged]
"""
import argparse
import array
import collections
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import layers  # noqa: E402
import micro  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENCODER = {"n": 16, "d": 512, "heads": 8, "ffn": 2048, "classes": 4}
SMALL_ENCODER = {"n": 4, "d": 32, "heads": 2, "ffn": 64, "classes": 4}
PROGRAMS = {  # dims; those of --small; outputs
    "early_exit": ({**ENCODER, "first": 2, "rest": 4}, {**SMALL_ENCODER, "first": 1, "rest": 2}, ("y", "scores")),
    "exit_per_layer": ({**ENCODER, "layers": 12}, {**SMALL_ENCODER, "layers": 4}, ("scores", "depth")),
    "stack_machine": ({"d": 128, "words": 12}, {"d": 16, "words": 5}, ("y", "taken")),
    "varying_depth": ({"d": 128, "words": 6, "thoughts": 4}, {"d": 16, "words": 3, "thoughts": 4}, ("y", "depths")),
    "bi_rnn": ({"d": 128, "words": 12}, {"d": 16, "words": 5}, ("y", "read")),
    "tree_lstm": ({"d": 128, "words": 12}, {"d": 16, "words": 5}, ("y", "joined")),
    "mv_rnn": ({"d": 64, "words": 8}, {"d": 8, "words": 5}, ("y", "joined")),
    "drnn": ({"d": 128, "most": 12}, {"d": 16, "most": 7}, ("y", "parents", "before", "count")),
}
ARMS = ("copilot", "tiles", "reactive", "replay", "replay_tiles", "replay_reactive", "static", "gpu_queue", "stream", "graph")
TORCH = ("eager", "segments", "padded")
REPLAYED = (("copilot", "replay", "choosing"), ("tiles", "replay_tiles", "choosing"), ("reactive", "replay_reactive", "choosing, and waiting until tasks are ready"))
ABLATED = ("copilot", "tiles", "replay", "replay_tiles", "static", "gpu_queue", "stream")
ABLATIONS = {  # the bench that has the inputs and holds the values; the same program where there is no GPU
    "moe": (["moe_layer.py", "--tokens", "8,512"], ["moe_layer", "experts=8", "top=2", "d=64", "ffn=32"]),
    "ragged": (["ragged_encoder.py", "--profiles", "mnli", "--batches", "32", "--dtypes", "bf16"], ["ragged_encoder", "d=64", "heads=2", "ffn=128"]),
}
TOLERANCE = 1e-3     # of a row's largest value, in float32
SEEDS_IN_FLIGHT = 4  # instances at a time
MOST_SHORT = 4000    # instances beside a long one
DISTINCT = 4         # different short ones of --isolate: the reference takes a second for each
SEED_ARMS = ("copilot", "tiles", "reactive", "static", "gpu_queue")  # those that --seeds asks of --arms


def spec_of(name):
    return os.path.join(ROOT, "spec/examples", f"{name}.yaml")


def write_npy(path, code, shape, values):
    """Float32 (`f`) or int32 (`i`), without numpy."""
    head = repr({"descr": {"f": "<f4", "i": "<i4"}[code], "fortran_order": False, "shape": tuple(shape)})
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + array.array(code, values).tobytes())


def read_npy(path):
    """Of float32, without numpy."""
    with open(path, "rb") as file:
        data = file.read()
    return array.array("f", data[10 + struct.unpack("<H", data[8:10])[0]:])


def seeded_inputs(name, dims, count):
    """Shape and values of each input, where PyTorch draws none: outcomes differ, but are not spread evenly."""
    draw = random.Random(1)
    d, words = dims["d"], dims.get("words", 1)

    def normal(deviation, *shape):
        return "f", shape, lambda: draw.gauss(0, deviation)

    def integers(low, high, *shape):
        return "i", shape, lambda: draw.randint(low, high)
    encoder = {"x": normal(1, dims.get("n"), d), "threshold": ("f", (1,), lambda: draw.uniform(0.25, 0.6))}
    sentence = {"x": normal(1, words, d), "n": integers(1, words, 1)}
    tree = {**sentence, "join": integers(0, 999, words - 1)}
    inputs = {"early_exit": encoder, "exit_per_layer": encoder, "stack_machine": sentence, "varying_depth": {"x": normal(1, words, d), "limit": normal(0.5, 1)}, "bi_rnn": sentence,
              "tree_lstm": tree, "mv_rnn": {**tree, "matrix": normal(0.1, words, d, d)}, "drnn": {"code": normal(1, 1, d), "limit": normal(0.5, 1)}}[name]
    return {key: (code, [count, *shape], [one() for _ in range(count * math.prod(shape))]) for key, (code, shape, one) in inputs.items()}


def steps_of(name, dims, reports):
    """Layers, or passes of the cell, that each run computed, as its reports say."""
    def said(report):
        return [values == [1] for values in reports.get(report, [])]
    if name == "early_exit":
        return [dims["first"] + dims["rest"] * went for went in said("go_on")]
    loops = {"exit_per_layer": "layers.", "stack_machine": "steps.", "bi_rnn": "forward.", "tree_lstm": "joins.", "mv_rnn": "joins.", "drnn": "nodes."}
    loop = loops.get(name)  # varying_depth has one a word
    asked = [said(report) for report in reports if report.endswith("go_on") and (loop is None or report == "go_on" or report.startswith(loop))]
    limits = {"exit_per_layer": dims.get("layers"), "stack_machine": 2 * dims.get("words", 0)}
    if name == "varying_depth":  # the last pass that is allowed is asked, too, and nothing follows it
        last = f"thoughts.{dims['thoughts'] - 1}.go_on"
        asked = [said(report) for report in reports if report.endswith("go_on") and not report.endswith(last)]
    counts = [sum(one) for one in zip(*asked)]
    return [min(count, limits.get(name, count)) for count in counts]


def times(us):
    return {"p50": micro.percentile(us, 0.5), "p99": micro.percentile(us, 0.99), "max": max(us)}


def submitted_us(each):
    """Of each iteration, from the end of submit() to done: 0 if it was done by then, as small runs are where all share a few cores."""
    return [max(0.0, us - submit) for us, submit in zip(each["us"], each["submit_us"])]


def by_steps(us, steps):
    """Medians by how much was computed."""
    found = collections.defaultdict(list)
    for time, count in zip(us, steps):
        found[count].append(time)
    return {str(count): statistics.median(found[count]) for count in sorted(found)}


class Case:
    """A program with its weights and inputs, in files for ccks-run; with PyTorch also what comes out."""

    def __init__(self, args, name, dims, work):
        self.args, self.name, self.dims, self.work, self.net = args, name, dims, work, None
        self.outputs = PROGRAMS[name][2]
        self.options = ["--verify"]
        if args.torch:
            self.draw()
        else:
            self.inputs = seeded_inputs(name, dims, args.inputs)
        for input_name, (code, shape, values) in self.inputs.items():
            write_npy(f"{work}/{input_name}.npy", code, shape, values)

    def draw(self):
        import torch
        from control_nets import NETS
        from safetensors.torch import save_file
        self.net = NETS[self.name](self.dims, "cuda" if self.args.device == "cuda" else "cpu")
        self.runs = self.net.draw(self.args.inputs)
        self.net.hold(self.runs[0])
        self.want, self.steps = zip(*(self.net.truth(inputs) for inputs in self.runs))
        save_file({name: value.cpu() for name, value in self.net.w.items()}, f"{self.work}/weights.safetensors")
        self.options = ["--weights", f"{self.work}/weights.safetensors"]
        stacked = {name: torch.stack([inputs[name] for inputs in self.runs]) for name in self.runs[0]}
        self.inputs = {name: ("i" if value.dtype == torch.int32 else "f", value.shape, value.flatten().tolist()) for name, value in stacked.items()}

    def command(self, arm, iterations):
        dims = [text for name, value in self.dims.items() for text in ("--set", f"{name}={value}")]
        files = [text for name in self.inputs for text in ("--input-each", f"{name}={self.work}/{name}.npy")]
        files += [text for name in self.outputs if self.net for text in ("--output-each", f"{name}={self.work}/{name}.out.npy")]
        return [self.args.ccks_run, spec_of(self.name), *dims, "--device", self.args.device, *layers.arm_options(arm), *files, *self.options, "--iters",
                str(iterations), "--json", *self.args.options]

    def error(self, got, index):
        """Of what a run of input `index` put out: the largest one of its rows, or more than is allowed where an integer is wrong."""
        worst = 0.0
        for name, right in self.want[index].items():
            value = got[name].reshape(right.shape).cpu()
            exact = not value.dtype.is_floating_point
            worst = max(worst, float((value != right).any()) if exact else layers.difference(value, right.float()))
        return worst

    def our_runs(self, arm, iterations, more=()):
        """What each iteration took, in microseconds, of a process whose outputs were all right; and everything it said."""
        result = layers.run(arm, self.command(arm, iterations) + list(more), self.work, self.args.timeout)
        each, wrong = result["each"], (result["verify"] or {}).get("max_rel_err")
        if self.net:
            outputs = {name: layers.load(f"{self.work}/{name}.out.npy") for name in self.outputs}
            wrong = max(self.error({name: values[i] for name, values in outputs.items()}, i % len(self.runs)) for i in range(iterations))
            if not wrong <= TOLERANCE:
                raise RuntimeError(f"off by {wrong}, allowed {TOLERANCE}")
        result["error"] = wrong
        result["steps"] = [self.steps[i % len(self.runs)] for i in range(iterations)] if self.net else steps_of(self.name, self.dims, each["reports"])
        result["alone_us"] = submitted_us(each)
        return result

    def our_line(self, arm):
        warm = self.args.inputs
        result = self.our_runs(arm, warm + self.args.iters)
        us, steps = result["alone_us"][warm:], result["steps"][warm:]
        return {"arm": arm, "code": result["code"]["kind"], "us": times(us), "with_inputs_us": times(result["each"]["us"][warm:]), "by_steps": by_steps(us, steps),
                "tasks_sent": result["scheduler"]["tasks_sent"] // len(result["alone_us"]), "error": result["error"], "scheduler": result["scheduler"]}

    def seeds_line(self, arm):
        result = self.our_runs(arm, self.args.inputs, ("--in-flight", str(SEEDS_IN_FLIGHT)) if arm != "gpu_queue" else ())
        return {"arm": arm, "seeds": self.args.inputs, "ways": len(set(result["steps"])), "error": result["error"]}

    def torch_line(self, how):
        import torch
        run, wrong = getattr(self.net, how), 0.0
        self.net.load(self.runs[0])
        run = run if how == "eager" else run()
        for index, inputs in enumerate(self.runs):
            self.net.load(inputs)
            wrong = max(wrong, self.error(run(), index))
        if not wrong <= TOLERANCE:
            raise RuntimeError(f"off by {wrong}, allowed {TOLERANCE}")
        turn = iter(range(1 << 30))
        between, wall = micro.measure(torch, run, self.args.iters, warm=self.args.inputs, before=lambda: self.net.load(self.runs[next(turn) % len(self.runs)]))
        steps = [self.steps[i % len(self.runs)] for i in range(self.args.iters)]  # as many warm ones as there are inputs: it begins at the first
        return {"arm": f"torch {how}", "torch": torch.__version__, "us": times(between), "wall_us": times(wall), "by_steps": by_steps(between, steps), "error": wrong}


def attempt(lines, line, arm, make, *arguments):
    """A line, or why there is none: an arm that does not run is reported, not fatal."""
    try:
        lines.append({**line, **make(*arguments)})
    except Exception as error:  # noqa: BLE001
        lines.append({**line, "arm": arm, "failed": str(error)[:300]})
    print(json.dumps(lines[-1]), flush=True)


def measure(args, name, lines):
    dims = {**PROGRAMS[name][1 if args.small else 0], **{k: v for k, v in args.set.items() if k in PROGRAMS[name][0]}}
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        case = Case(args, name, dims, work)
        line = {"bench": f"control_flow/{name}", "device": args.device, "dims": dims, "inputs": args.inputs}
        if args.seeds:
            for arm in (arm for arm in args.arms if arm in SEED_ARMS):
                attempt(lines, {**line, "bench": f"control_flow/{name}/seeds"}, arm, case.seeds_line, arm)
            return
        for how in args.torch:
            attempt(lines, line, f"torch {how}", case.torch_line, how)
        for arm in args.arms:
            if arm.startswith("graph") and args.device == "host":
                continue  # the host device launches one by one
            attempt(lines, line, arm, case.our_line, arm)


class Isolation:
    """Instances that take long or not, as their values say. What each kind of them puts out alone is held by the reference interpreter, and what they put
    out beside each other by that: to interpret thousands would take an hour."""

    def __init__(self, args, work):
        self.args, self.work, self.dims = args, work, {"d": 64, "m": 16384 if args.small else args.long_rows}

    def runs(self, arm, pattern, rounds, in_flight, workers, far, right=None):
        """`pattern`: which instances take long; what ccks-run says of each of `rounds` times as many, and under `y` what they put out. `right` says what should come
        of each of the pattern; where it does not the reference does."""
        draw = random.Random(1)
        x = [draw.gauss(0, 1) for _ in range(DISTINCT * self.dims["d"])] * (len(pattern) // DISTINCT + 1)
        write_npy(f"{self.work}/x.npy", "f", [len(pattern), 1, self.dims["d"]], x[:len(pattern) * self.dims["d"]])
        write_npy(f"{self.work}/limit.npy", "f", [len(pattern), 1], [-1e9 if long else 1e9 for long in pattern])
        dims = [text for name, value in self.dims.items() for text in ("--set", f"{name}={value}")]
        write_npy(f"{self.work}/far.npy", "i", [len(pattern), 1], [far] * len(pattern))
        each = [text for name in ("x", "limit", "far") for text in ("--input-each", f"{name}={self.work}/{name}.npy")]
        command = [self.args.ccks_run, os.path.join(ROOT, "bench/specs/one_long.yaml"), *dims, "--device", self.args.device, *layers.arm_options(arm), *each, "--in-flight", str(in_flight), "--workers-per-run", str(workers), "--iters",
                   str(rounds * len(pattern)), *(["--verify"] if right is None else []), "--output-each", f"y={self.work}/y.npy", "--json", *self.args.options]
        result = layers.run(arm, command, self.work, self.args.timeout)
        y, d = read_npy(f"{self.work}/y.npy"), self.dims["d"]
        result["y"] = [y[at:at + d] for at in range(0, len(y), d)]
        if right is not None and result["y"] != right * rounds:
            raise RuntimeError("what instances put out beside each other is not what they do alone")
        if result["each"]["reports"]["long"] != [[int(long)] for long in pattern] * rounds:
            raise RuntimeError("other instances took long than should have")
        return result

    def far_enough(self, arm, workers, wanted_us):
        """How many positions a long instance goes through, of those there are, to take so long; how long it then takes, alone, and what it puts out."""
        far = self.dims["m"] // 4
        for more in (1.1, 1):
            runs = self.runs(arm, [True], 8, 1, workers, far)
            slow = statistics.median(runs["each"]["us"][2:])  # nothing to wait behind
            if more == 1 or slow >= wanted_us:
                return far, slow, runs["y"][0]
            far = min(self.dims["m"], int(more * far * wanted_us / slow))
        raise AssertionError

    def line(self, arm, workers):
        """One long instance at a time beside in_flight - 1 short ones; then the short ones alone."""
        flying, short = self.args.in_flight, [False] * DISTINCT
        alone_runs = self.runs(arm, short, self.args.iters // DISTINCT + 2, flying - 1, workers, 0)
        alone = alone_runs["each"]
        quick = submitted_us(alone)[len(short):]  # the first round is not counted, here and below
        whole = statistics.median(alone["us"][len(short):])  # submit() too, as in what the long one takes: never 0
        far, slow, long_y = self.far_enough(arm, workers, self.args.long_times * whole)
        # Short ones until the long one has ended, and a few more: never two long ones at a time.
        between = min(MOST_SHORT, int(1.2 * slow / (alone["at_us"][-1] / len(alone["us"]))) + flying)
        right = [long_y] + [alone_runs["y"][i % DISTINCT] for i in range(1, between + 1)]
        both = self.runs(arm, [True] + [False] * between, max(3, self.args.iters // between), flying, workers, far, right)["each"]
        spans = [(at, at + us) for at, us in zip(both["at_us"], both["us"])]
        long = [spans[i] for i in range(between + 1, len(spans), between + 1)]
        beside = [us for i, us in enumerate(submitted_us(both)) if i % (between + 1) != 0 and any(spans[i][0] < end and begin < spans[i][1] for begin, end in long)]
        return {"arm": arm, "in_flight": flying, "workers_per_run": workers, "far": far, "long_us": slow, "short_alone_us": times(quick), "short_beside_us": times(beside or [0.0]),
                "long_over_short": slow / whole, "short_runs_beside": len(beside)}  # none: the long one was through too soon


def isolate(args, lines):
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        isolation = Isolation(args, work)
        for arm in (name for name in args.arms if name in ("copilot", "tiles", "reactive", "static")):
            for workers in (args.workers_per_run, 0):
                attempt(lines, {"bench": "control_flow/isolation", "device": args.device, "dims": isolation.dims}, arm, isolation.line, arm, workers)


def ablate(args, which, lines):
    """On a GPU by the bench that holds the layer's values against PyTorch; else the layer at small sizes, held by the reference interpreter."""
    script, (name, *dims) = ABLATIONS[which]
    arms = [arm for arm in ABLATED if arm in args.arms]
    if args.device == "cuda":
        found = []
        command = [sys.executable, "-B", os.path.join(ROOT, "bench", script[0]), *script[1:], "--ccks-run", args.ccks_run, "--arms", ",".join(arms), "--torch", "", "--iters",
                   str(args.iters), "--timeout", str(args.timeout), *(["--work", args.work] if args.work else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as done:
            for text in done.stdout:  # as they come: whoever is cut short has what there was
                if text.startswith("{"):
                    found.append(json.loads(text))
                    print(text, end="", flush=True)
        lines += found or [{"bench": name, "arm": "all", "failed": f"{script[0]}: exit code {done.returncode}"}]
        return
    command = [args.ccks_run, spec_of(name), *(text for dim in dims for text in ("--set", dim)), "--device", args.device, "--iters", str(args.iters), "--keep-inputs",
               "--verify", "--json", *args.options]
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        def one(arm):
            result = layers.run(arm, command + layers.arm_options(arm), work, args.timeout)
            return {"arm": arm, "us": result["us"], "error": result["verify"]["max_rel_err"], "scheduler": result["scheduler"]}
        for arm in arms:
            attempt(lines, {"bench": f"{name}/small", "device": args.device}, arm, one, arm)


def summary(lines):
    out = []
    for bench in dict.fromkeys(line["bench"] for line in lines):
        own = [line for line in lines if line["bench"] == bench]
        if bench.endswith("/isolation"):
            out.append(f"{bench + ', us':<54}{'long':>10}{'short alone p50':>17}{'p99':>10}{'beside p50':>12}{'p99':>10}{'max':>10}")
            for line in own:
                if "failed" in line:
                    out.append(f"  {line['arm']}: failed: {line['failed'][:90]}")
                    continue
                label = f"  {line['arm']}, {line['workers_per_run'] or 'all'} workers a run, {line['long_over_short']:.0f} times as long"
                out.append(f"{label:<54}{line['long_us']:>10.1f}{line['short_alone_us']['p50']:>17.1f}{line['short_alone_us']['p99']:>10.1f}"
                           f"{line['short_beside_us']['p50']:>12.1f}{line['short_beside_us']['p99']:>10.1f}{line['short_beside_us']['max']:>10.1f}")
            continue
        if bench.endswith("/seeds"):
            out += [f"{bench}, {line['arm']}: " + (f"failed: {line['failed'][:90]}" if "failed" in line else
                                                   f"{line['seeds']} instances, all right (worst error {line['error']:.1e}), {line['ways']} ways") for line in own]
            continue
        out.append(f"{bench:<46}{'p50 us':>10}{'p99 us':>10}{'tasks sent':>12}  least and most computed, p50 us")
        for line in own:
            ways = list(line.get("by_steps", {}).items())
            shown = ", ".join(f"{count} steps {us:.1f}" for count, us in dict([ways[0], ways[-1]]).items()) if ways else ""
            out.append(f"  {line['arm']:<44}" + ("failed: " + line["failed"][:90] if "failed" in line else
                                                   f"{line['us']['p50']:>10.1f}{line['us']['p99']:>10.1f}{line.get('tasks_sent', ''):>12}  {shown}".rstrip()))
        p50 = {line["arm"]: line["us"]["p50"] for line in own if "failed" not in line}
        for arm, replayed, what in REPLAYED:
            if arm in p50 and replayed in p50:
                share = f"{(p50[arm] - p50[replayed]) / p50[arm]:.1%}" if p50[arm] else "not known, runs were through before submit() returned"
                out.append(f"  {what}, ({arm} - {replayed}) / {arm}: {share}")
    return "\n".join(out)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def dim(text):
        name, _, value = text.partition("=")
        return name, int(value)
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    for option, known in (("programs", tuple(PROGRAMS)), ("arms", ARMS), ("torch", TORCH), ("ablate", tuple(ABLATIONS))):
        parser.add_argument(f"--{option}", type=micro.names_of(known), default=[] if option == "ablate" else list(known), help=", ".join(known))
    parser.add_argument("--set", type=dim, action="append", default=[], metavar="NAME=INT", help="a dim of all programs that have it")
    parser.add_argument("--small", action="store_true", help="dims small enough for the reference interpreter")
    parser.add_argument("--inputs", type=int, default=32, help="different ones")
    parser.add_argument("--seeds", type=int, default=0, help="hold so many instances of each program, and take no times")
    parser.add_argument("--iters", type=int, default=320, help="runs of each arm, behind one of each input")
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--in-flight", type=int, default=16, help="isolation: instances at a time")
    parser.add_argument("--long-rows", type=int, default=3 << 18, help="isolation: positions that the long instance may go through")
    parser.add_argument("--long-times", type=float, default=100, help="isolation: how many times as long the long instance is to take")
    parser.add_argument("--workers-per-run", type=int, default=4, help="isolation: workers of an instance, beside all of them")
    parser.add_argument("--work", type=micro.folder, help="where weights and inputs are written (a ram disk)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one call of ccks-run")
    parser.add_argument("options", nargs="*", help="further options of ccks-run, after --")
    args = parser.parse_args()
    args.set = dict(args.set)
    args.inputs = args.seeds or args.inputs
    return args


def lacks(args):
    """What keeps the bench from running here, if anything does."""
    if not args.torch and args.device == "host":
        return None
    if layers.torch is None:
        return "no PyTorch"
    return "no GPU" if args.device == "cuda" and not layers.torch.cuda.is_available() else None


def main():
    args = arguments()
    if missing := lacks(args):
        print(f"control_flow: {missing}", file=sys.stderr)
        return 77
    if args.torch:
        layers.torch.backends.cuda.matmul.allow_tf32 = False
        layers.torch.set_grad_enabled(False)
    lines = []
    for name in args.programs:
        measure(args, name, lines)
    if args.isolate:
        isolate(args, lines)
    for which in args.ablate:
        ablate(args, which, lines)
    print(summary(lines), file=sys.stderr)
    return 3 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
