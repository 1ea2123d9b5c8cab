#!/usr/bin/env python3
"""A mixture-of-experts layer, router included: ccks under each arm, PyTorch with grouped products, eager and in a CUDA graph, in one run.

Weights and inputs are made here and given to both, and lie on the GPU before a run is timed (the median, that is: our first run's input is written in
its own time). Experts are popular as 1 / rank^0.8 over a random permutation, and a token's eight are found as Gumbel's top-k, which the inputs are
made for (`routed_inputs`). Each of our processes puts out y of its last run, and its time is printed
only if y agrees with float32: to twice the error that PyTorch's own bf16 has. A token of which two experts are all but equally good is left out and
counted. Prints a JSON line for each arm and number of tokens; with --trace a table of ops: the time that bodies took and workers waited,
averaged over the workers, and the longest body. Exits 77 without PyTorch or a GPU, 3 if something was wrong.
usage: bench/moe_layer.py [--tokens N[,N]] [--arms A[,A]] [--torch grouped,graph] [--iters N] [--trace] [-- ccks-run options]
"""
import argparse
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from micro import as_graph  # noqa: E402

try:
    import layers
    import numpy
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    print(f"moe_layer: nothing to compare with: {error}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPEC = os.path.join(ROOT, "spec/examples/moe_layer.yaml")
BYTES_PER_US, OPERATIONS_PER_US = 4.67e6, 790e6  # what an H200 does at most
GOALS = {1: 35, 8: 105, 64: 280, 512: 330, 2048: 450}
CLOSE = 1e-3  # two logits that differ by less may change places where sums are rounded otherwise
EPS = 1e-6


def make_weights(args):
    torch.manual_seed(1)
    def normal(*shape, scale):
        return (torch.randn(*shape, device="cuda") * scale).bfloat16()
    return {"norm": torch.ones(args.d, device="cuda", dtype=torch.bfloat16), "router": normal(args.experts, args.d, scale=4 * args.d ** -0.5),
            "w_gate": normal(args.experts, args.ffn, args.d, scale=args.d ** -0.5), "w_up": normal(args.experts, args.ffn, args.d, scale=args.d ** -0.5),
            "w_down": normal(args.experts, args.d, args.ffn, scale=args.ffn ** -0.5)}


def routed_inputs(args, weights, tokens):
    """Rows of x whose logits are log(popularity) + Gumbel noise, as far as bf16 says it: what the router sees of a row is that, the rest is noise."""
    torch.manual_seed(tokens)
    popular = 1 / torch.arange(1, args.experts + 1, device="cuda").double() ** 0.8
    popular = popular[torch.randperm(args.experts, device="cuda")]
    uniform = torch.rand(tokens, args.experts, device="cuda", dtype=torch.float64).clamp_min(1e-12)
    logits = popular.log()[None] - (-uniform.log()).log()
    logits = logits - logits.mean(-1, keepdim=True)
    router = weights["router"].double()
    inverse = torch.linalg.pinv(router)  # [d, experts]
    seen = logits @ inverse.T
    noise = torch.randn(tokens, args.d, device="cuda", dtype=torch.float64)
    noise = noise - noise @ router.T @ inverse.T
    left = (args.d - seen.square().sum(-1, keepdim=True)).clamp_min(0)
    return (seen + noise * (left / noise.square().sum(-1, keepdim=True)).sqrt()).bfloat16()


def normed(x, weights):
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS) * weights["norm"].float()).bfloat16()


def routed(args, x, weights):
    h = normed(x, weights)
    logits = h.float() @ weights["router"].float().T
    values, chosen = logits.topk(args.top + 1, -1)
    return h, torch.softmax(values[:, :args.top], -1), chosen[:, :args.top], values


def truth(args, x, weights):
    """y in float32, the norm's result alone rounded; which rows it holds for; pairs of each expert."""
    h, share, chosen, values = routed(args, x, weights)
    y = x.float()
    for e in chosen.unique().tolist():
        t, j = torch.where(chosen == e)
        gate, up, down = (weights[name][e].float() for name in ("w_gate", "w_up", "w_down"))
        rows = h[t].float()
        y.index_add_(0, t, torch.nn.functional.silu(rows @ gate.T) * (rows @ up.T) @ down.T * share[t, j, None])
    sure = values[:, args.top - 1] - values[:, args.top] >= CLOSE
    return y, sure, chosen.flatten().bincount(minlength=args.experts)


def grouped(args, weights):
    """What a PyTorch user writes: pairs sorted by expert, two grouped products, no wait for the host."""
    both = torch.cat([weights["w_gate"], weights["w_up"]], 1).transpose(-1, -2)
    down, router = weights["w_down"].transpose(-1, -2), weights["router"].T

    def run(x):
        h = torch.nn.functional.rms_norm(x, (args.d,), weights["norm"], EPS)
        values, chosen = (h @ router).topk(args.top, -1)
        share, flat = torch.softmax(values.float(), -1), chosen.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.zeros(args.experts, device="cuda", dtype=torch.int32).index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
        ends, token = counts.cumsum(0).to(torch.int32), order // args.top
        a, b = torch._grouped_mm(h[token], both, offs=ends).chunk(2, -1)
        z = torch._grouped_mm(torch.nn.functional.silu(a) * b, down, offs=ends)
        return x.index_add(0, token, z * share.flatten()[order, None].to(z.dtype))
    return run


def torch_line(how, run, x, want, sure, runs):
    def once():
        return run(x)
    function = as_graph(torch, once) if how == "graph" else once
    return layers.torch_line(how, function, runs, layers.difference(function(), want, sure))


def command_of(args, arm, tokens, work):
    dims = [text for name in ("experts", "top", "d", "ffn") for text in ("--set", f"{name}={getattr(args, name)}")]
    return [args.ccks_run, SPEC, *dims, "--set", f"t={tokens}", "--device", "cuda", *layers.arm_options(arm), "--weights", f"{work}/weights.safetensors",
            "--input", f"x={work}/x{tokens}.npy", "--keep-inputs", "--json", *args.options]


def our_line(args, arm, tokens, work, want, sure, tolerance):
    def error_of(y):
        return layers.difference(y.reshape(tokens, args.d).cuda(), want, sure)
    return layers.our_line(args, arm, command_of(args, arm, tokens, work), work, error_of, tolerance)


def measure(args, weights, tokens, work, lines):
    x = routed_inputs(args, weights, tokens)
    numpy.save(f"{work}/x{tokens}.npy", x.view(torch.int16).cpu().numpy().view("V2"))
    want, sure, counts = truth(args, x, weights)
    used = int((counts > 0).sum())
    floor = max(used * 3 * args.d * args.ffn * 2 / BYTES_PER_US, tokens * args.top * 6 * args.d * args.ffn / OPERATIONS_PER_US)
    line = {"bench": f"moe_layer/T{tokens}", "tokens": tokens, "experts": args.experts, "top": args.top, "d": args.d, "ffn": args.ffn, "experts_used": used,
            "most_pairs": int(counts.max()), "floor_us": floor, "goal_us": GOALS.get(tokens), "tokens_close": int((~sure).sum())}
    tolerance = 2 * layers.difference(grouped(args, weights)(x), want, sure)
    found = [(torch_line, (how, grouped(args, weights), x, want, sure, args.iters)) for how in args.torch]
    found += [(our_line, (args, arm, tokens, work, want, sure, tolerance)) for arm in args.arms]
    for make, arguments in found:
        try:
            lines.append({**line, **make(*arguments)})
        except Exception as error:  # noqa: BLE001 an arm that does not run is reported, not fatal
            lines.append({**line, "arm": str(arguments[0 if make is torch_line else 1]), "failed": str(error)[:300]})
        print(json.dumps(lines[-1]), flush=True)
    if args.trace:
        print("\n".join(layers.op_lines(command_of(args, "copilot", tokens, work), f"{tokens} tokens", work, args.timeout)), flush=True)


def summary(lines):
    def cell(line):
        return "failed" if "failed" in line else f"{line['us']['p50']:.1f}"
    out = []
    for tokens in dict.fromkeys(line["tokens"] for line in lines):
        own = [line for line in lines if line["tokens"] == tokens]
        out.append(f"{tokens:>5} tokens, floor {own[0]['floor_us']:.0f}, goal {own[0]['goal_us']}: " + ", ".join(f"{line['arm']} {cell(line)}" for line in own))
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--tokens", default="1,8,64,512,2048")
    parser.add_argument("--arms", default="copilot,static,gpu_queue,graph")
    parser.add_argument("--torch", default="grouped,graph")
    for name, value in (("experts", 128), ("top", 8), ("d", 2048), ("ffn", 768)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--iters", type=int, default=50)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--work", help="where weights are written (a ram disk: 1.2 GB)")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("options", nargs="*", help="further options of ccks-run, after --")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("moe_layer: no GPU", file=sys.stderr)
        return 77
    args.arms, args.torch = ([name for name in text.split(",") if name] for text in (args.arms, args.torch))
    lines = []
    with tempfile.TemporaryDirectory(dir=args.work) as work, torch.inference_mode():
        torch.backends.cuda.matmul.allow_tf32 = False
        weights = make_weights(args)
        save_file(weights, f"{work}/weights.safetensors")
        for tokens in (int(text) for text in args.tokens.split(",")):
            measure(args, weights, tokens, work, lines)
    print(summary(lines), file=sys.stderr)
    return 3 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
