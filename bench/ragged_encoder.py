#!/usr/bin/env python3
"""An encoder layer over a batch of sequences of different lengths: ccks under each arm, without padding, and PyTorch in one run: the batch padded to its
longest sequence, in a CUDA graph and compiled, and nested tensors.

Weights and inputs are made here and given to all, and lie on the GPU before a run is timed; lengths are drawn as the profile says (normal, cut to 8..max).
Each of our processes puts out y of its last run, and its time is printed only if y agrees with float32, sequence by sequence: to twice
the error that PyTorch's own padded batch has (float32: to 1e-3 of a row's largest value). Prints a JSON line for each arm, profile, batch and
dtype, and at the end the geometric mean of what ours gains over the best of PyTorch. With --trace a table of ops. Exits 77 without PyTorch or a GPU, 3 if
something was wrong.
usage: bench/ragged_encoder.py [--profiles P[,P]] [--batches N[,N]] [--dtypes D[,D]] [--arms A[,A]] [--torch graph,nested,compile] [-- ccks-run options]
"""
import argparse
import json
import math
import os
import random
import re
import sys
import tempfile

sys.dont_write_bytecode = True
from micro import as_graph, folder  # noqa: E402

try:
    import layers
    import numpy
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
except ImportError as error:
    print(f"ragged_encoder: nothing to compare with: {error}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPEC = os.path.join(ROOT, "spec/examples/ragged_encoder.yaml")
PROFILES = {"mnli": (43, 20, 128), "squad": (191, 69, 384), "wiki512": (367, 180, 512), "race": (361, 103, 512), "cola": (13, 5, 48),
            "mrpc": (59, 15, 112), "xnli": (70, 35, 128), "wiki128": (115, 27, 128)}  # mean, standard deviation, most
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def lengths_of(profile, batch):
    mean, deviation, most = PROFILES[profile]
    draw = random.Random(1)
    return [max(8, min(most, int(draw.gauss(mean, deviation)))) for _ in range(batch)]


def make_weights(args, dtype):
    torch.manual_seed(1)
    d, ffn = args.d, args.ffn

    def normal(*shape, scale):
        return (torch.randn(*shape, device="cuda") * scale).to(DTYPES[dtype])
    weights = {"w_qkv": normal(3 * d, d, scale=d ** -0.5), "w_out": normal(d, d, scale=d ** -0.5), "w_up": normal(ffn, d, scale=d ** -0.5),
               "w_down": normal(d, ffn, scale=ffn ** -0.5)}
    for name, rows in (("b_qkv", 3 * d), ("b_out", d), ("b_up", ffn), ("b_down", d), ("bias_1", d), ("bias_2", d)):
        weights[name] = normal(rows, scale=0.1)
    for name in ("norm_1", "norm_2"):
        weights[name] = 1 + normal(d, scale=0.1)
    return weights


def layer(args, w, x, attend):
    """x, ..., [.., d]; `attend` takes and gives [.., heads, d / heads]."""
    shape = x.shape
    q, k, v = (t.unflatten(-1, (args.heads, args.d // args.heads)) for t in F.linear(x, w["w_qkv"], w["b_qkv"]).chunk(3, -1))
    y = attend(q, k, v)
    y = y.flatten(-2) if y.is_nested else y.reshape(shape)
    h = F.layer_norm(x + F.linear(y, w["w_out"], w["b_out"]), (args.d,), w["norm_1"], w["bias_1"], 1e-5)
    return F.layer_norm(h + F.linear(F.gelu(F.linear(h, w["w_up"], w["b_up"])), w["w_down"], w["b_down"]), (args.d,), w["norm_2"], w["bias_2"], 1e-5)


def truth(args, weights, x, lengths):
    """y in float32, sequence by sequence."""
    w = {name: t.float() for name, t in weights.items()}
    out = []
    for one in x.float().split(lengths):
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)).transpose(0, 1)
        out.append(layer(args, w, one, attend))
    return torch.cat(out)


def padded(args, weights, x, lengths):
    """The batch as [batch, longest, d], its rows behind a sequence's end masked; and how to get the rows out again."""
    longest = max(lengths)
    rows = torch.zeros(len(lengths), longest, args.d, device="cuda", dtype=x.dtype)
    inside = torch.arange(longest, device="cuda")[None] < torch.tensor(lengths, device="cuda")[:, None]
    rows[inside] = x
    mask = inside[:, None, None, :]

    def run():
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask).transpose(1, 2)
        return layer(args, weights, rows, attend)
    return run, lambda y: y[inside]


def nested(args, weights, x, lengths):
    rows = torch.nested.nested_tensor(list(x.split(lengths)), layout=torch.jagged)

    def run():
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        return layer(args, weights, rows, attend)
    return run, lambda y: y.values()


def torch_line(args, how, weights, x, lengths, want):
    run, rows_of = (nested if how == "nested" else padded)(args, weights, x, lengths)
    function = {"graph": lambda: as_graph(torch, run), "compile": lambda: torch.compile(run, mode="reduce-overhead")}.get(how, lambda: run)()
    for _ in range(3):
        y = function()
    return layers.torch_line(how, function, args.iters, layers.difference(rows_of(y), want))


def command_of(args, arm, lengths, work):
    return [args.ccks_run, f"{work}/ragged_encoder.yaml", "--set", f"d={args.d}", "--set", f"heads={args.heads}", "--set", f"ffn={args.ffn}",
            "--set", f"sequences={len(lengths)}", "--lengths", f"rows={work}/lengths.npy", "--device", "cuda", *layers.arm_options(arm),
            "--weights", f"{work}/weights.safetensors", "--input", f"x={work}/x.npy", "--keep-inputs", "--json", *args.options]


def our_line(args, arm, lengths, work, want, tolerance):
    def error_of(y):
        return layers.difference(y.reshape(-1, args.d)[:sum(lengths)].cuda(), want)
    return layers.our_line(args, arm, command_of(args, arm, lengths, work), work, error_of, tolerance)


def measure(args, dtype, weights, profile, batch, work, lines):
    lengths = lengths_of(profile, batch)
    torch.manual_seed(batch)
    x = torch.randn(sum(lengths), args.d, device="cuda").to(DTYPES[dtype])
    numpy.save(f"{work}/lengths.npy", numpy.array(lengths, dtype=numpy.int32))
    numpy.save(f"{work}/x.npy", x.cpu().numpy() if dtype == "f32" else x.view(torch.int16).cpu().numpy().view("V2"))
    want = truth(args, weights, x, lengths)
    operations = sum(lengths) * 2 * (4 * args.d * args.d + 2 * args.d * args.ffn) + sum(n * n for n in lengths) * 4 * args.d
    line = {"bench": f"ragged_encoder/{dtype}_{profile}_B{batch}", "dtype": dtype, "profile": profile, "batch": batch, "rows": sum(lengths),
            "padded_rows": batch * max(lengths), "operations": operations}
    run, rows_of = padded(args, weights, x, lengths)
    tolerance = 2 * layers.difference(rows_of(run()), want) if dtype == "bf16" else 1e-3
    found = [(torch_line, (args, how, weights, x, lengths, want)) for how in args.torch]
    found += [(our_line, (args, arm, lengths, work, want, tolerance)) for arm in args.arms]
    for make, arguments in found:
        try:
            lines.append({**line, **make(*arguments)})
        except Exception as error:  # noqa: BLE001 an arm that does not run is reported, not fatal
            lines.append({**line, "arm": arguments[1] if make is our_line else f"torch {arguments[1]}", "failed": str(error)[:300]})
        print(json.dumps(lines[-1]), flush=True)
    if args.trace:
        print("\n".join(layers.op_lines(command_of(args, "copilot", lengths, work), f"{line['bench']}", work, args.timeout)), flush=True)


def summary(lines):
    def cell(line):
        return "failed" if "failed" in line else f"{line['us']['p50']:.1f}"
    out, gains = [], {}
    for bench in dict.fromkeys(line["bench"] for line in lines):
        own = [line for line in lines if line["bench"] == bench]
        out.append(f"{bench}, {own[0]['rows']} rows of {own[0]['padded_rows']} padded: " + ", ".join(f"{line['arm']} {cell(line)}" for line in own))
        times = {line["arm"]: line["us"]["p50"] for line in own if "failed" not in line}
        theirs, ours = ([t for arm, t in times.items() if arm.startswith("torch") == torches] for torches in (True, False))
        if theirs and ours:
            gains.setdefault(own[0]["dtype"], []).append(min(theirs) / min(ours))
    for dtype, all_of in gains.items():
        out.append(f"{dtype}: {math.exp(sum(map(math.log, all_of)) / len(all_of)):.2f} times the best of PyTorch's speed (geometric mean of {len(all_of)})")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--profiles", default="mnli,squad,wiki512", help=", ".join(PROFILES))
    parser.add_argument("--batches", default="32,128")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--arms", default="copilot,static,gpu_queue,graph")
    parser.add_argument("--torch", default="graph,nested")
    for name, value in (("d", 512), ("heads", 8), ("ffn", 2048)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--iters", type=int, default=50)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--work", type=folder, help="where weights and inputs are written (a ram disk)")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("options", nargs="*", help="further options of ccks-run, after --")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("ragged_encoder: no GPU", file=sys.stderr)
        return 77
    args.arms, args.torch, args.dtypes, args.profiles = ([name for name in text.split(",") if name] for text in (args.arms, args.torch, args.dtypes, args.profiles))
    lines = []
    with tempfile.TemporaryDirectory(dir=args.work) as work, torch.inference_mode():
        torch.backends.cuda.matmul.allow_tf32 = False
        for dtype in args.dtypes:
            weights = make_weights(args, dtype)
            save_file(weights, f"{work}/weights.safetensors")
            with open(SPEC) as file, open(f"{work}/ragged_encoder.yaml", "w") as copy:
                copy.write(re.sub(r"^dtype: \w+$", f"dtype: {dtype}", file.read(), flags=re.M))
            for profile in args.profiles:
                for batch in (int(text) for text in args.batches.split(",")):
                    measure(args, dtype, weights, profile, batch, work, lines)
    print(summary(lines), file=sys.stderr)
    return 3 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
