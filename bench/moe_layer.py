#!/usr/bin/env python3
"""A mixture-of-experts layer, router included: ccks under each arm, PyTorch with grouped products, eager and in a CUDA graph, in one run.

Weights and inputs are made here and given to both, and lie on the GPU before a run is timed (the median, that is: our first run's input is written in
its own time). Experts are popular as 1 / rank^0.8 over a random permutation, and a token's eight are found as Gumbel's top-k, which the inputs are
made for (`routed_inputs`). Each of our processes puts out y of its last run, and its time is printed
only if y agrees with float32: to twice the error that PyTorch's own bf16 has. A token of which two experts are all but equally good is left out and
counted. Prints a JSON line for each arm and number of tokens; with --trace a table of ops: the time that bodies took and workers waited,
averaged over the workers, and the longest body. With --speculate MIB ours also asks for so much of the experts' weights that the last run needed before the
router has run (EngineOptions::speculate_bytes): beside no speculation, with 0 to 100 % of the guesses wrong, and with other tokens in each run (`fresh`), where the
guesses are as right as they are; the bits of y must be those without. Exits 77 without PyTorch or a GPU, 3 if something was wrong.
usage: bench/moe_layer.py [--tokens N[,N]] [--arms A[,A]] [--torch grouped,graph] [--iters N] [--trace] [--speculate MIB[,MIB]] [-- ccks-run options]
"""
import argparse
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from micro import as_graph, folder  # noqa: E402

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
FRESH = 16  # different inputs of runs that have one each


def make_weights(args):
    torch.manual_seed(1)
    def normal(*shape, scale):
        return (torch.randn(*shape, device="cuda") * scale).bfloat16()
    return {"norm": torch.ones(args.d, device="cuda", dtype=torch.bfloat16), "router": normal(args.experts, args.d, scale=4 * args.d ** -0.5),
            "w_gate": normal(args.experts, args.ffn, args.d, scale=args.d ** -0.5), "w_up": normal(args.experts, args.ffn, args.d, scale=args.d ** -0.5),
            "w_down": normal(args.experts, args.d, args.ffn, scale=args.ffn ** -0.5)}


def routed_inputs(args, weights, tokens, seed=0):
    """Rows of x whose logits are log(popularity) + Gumbel noise, as far as bf16 says it: what the router sees of a row is that, the rest is noise."""
    torch.manual_seed(tokens)
    order = torch.randperm(args.experts, device="cuda")
    if seed:
        torch.manual_seed(tokens + 10007 * seed)
    popular = 1 / torch.arange(1, args.experts + 1, device="cuda").double() ** 0.8
    popular = popular[order]  # whatever the seed: experts stay as popular as they are
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


def guessed(args, arm, tokens, work, mib, wrong, fresh):
    """What ccks-run says, and y's bits. `fresh`: runs have tokens of their own, and y is of all of them."""
    command = command_of(args, arm, tokens, work)
    y, count = f"{work}/y.npy", args.iters
    if fresh:
        at = command.index("--input")
        command[at:at + 2] = ["--input-each", f"x={work}/fresh{tokens}.npy", "--output-each", f"y={y}"]
        command.remove("--keep-inputs")
    else:
        command += ["--output", f"y={y}"]
    result = layers.run(arm, command + ["--iters", str(count), *(["--speculate", str(mib), "--wrong-guesses", str(wrong)] if mib else [])], work, args.timeout)
    return result, layers.load(y)


def speculate(args, arm, tokens, work, line, want, sure, tolerance, lines):
    """Processes without and with guesses take turns, `--repeats` times, since processes differ; the median of what each took."""
    for fresh in (False, True):
        ways = [(0, 0)] + [(mib, wrong) for mib in args.speculate for wrong in ((0,) if fresh else args.wrong)]
        took, said, right = {way: [] for way in ways}, {}, None
        for _ in range(args.repeats):
            for way in ways:
                result, y = guessed(args, arm, tokens, work, *way, fresh)
                if not fresh:
                    off = layers.difference(y.reshape(tokens, args.d).cuda(), want, sure)
                    if not off <= tolerance:
                        raise RuntimeError(f"off by {off}, allowed {tolerance}")
                right = y if right is None else right
                if not torch.equal(y.view(torch.int16), right.view(torch.int16)):
                    raise RuntimeError(f"{way}: other bits than without guesses")
                us = [us - submit for us, submit in zip(result["each"]["us"], result["each"]["submit_us"])] if fresh else None
                took[way].append(sorted(us)[len(us) // 2] if us else result["us"]["p50"])
                said[way] = result.get("guesses")
        plain = sorted(took[0, 0])[len(took[0, 0]) // 2]
        for mib, wrong in ways:
            us, guesses = sorted(took[mib, wrong])[len(took[mib, wrong]) // 2], said[mib, wrong]
            made = {"guesses_a_run": guesses["made"] / (args.iters - 1), "hit_rate": guesses["right"] / max(guesses["made"], 1), "mib_a_run": guesses["mib"] / (args.iters - 1),
                    "gain_us": plain - us} if guesses else {}
            if guesses and guesses["made"] > guesses["right"]:  # over what all right took, where that is known
                best = took.get((mib, 0), took[0, 0])
                made["wrong_guess_us"] = (us - sorted(best)[len(best) // 2]) / ((guesses["made"] - guesses["right"]) / (args.iters - 1))
            lines.append({**line, "bench": f"moe_layer/T{tokens}/guesses", "arm": arm, "fresh": fresh, "speculate_mib": mib, "wrong_percent": wrong, "us": {"p50": us},
                          "processes_us": took[mib, wrong], "same_bits": True, **made})
            print(json.dumps(lines[-1]), flush=True)


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
    if args.speculate:
        inputs = [routed_inputs(args, weights, tokens, seed) for seed in range(FRESH)]
        numpy.save(f"{work}/fresh{tokens}.npy", torch.stack(inputs).view(torch.int16).cpu().numpy().view("V2"))
        for arm in (arm for arm in args.arms if arm in ("copilot", "static")):
            try:
                speculate(args, arm, tokens, work, line, want, sure, tolerance, lines)
            except Exception as error:  # noqa: BLE001 as above
                lines.append({**line, "bench": f"moe_layer/T{tokens}/guesses", "arm": arm, "failed": str(error)[:300]})
                print(json.dumps(lines[-1]), flush=True)
    if args.trace:
        print("\n".join(layers.op_lines(command_of(args, "copilot", tokens, work), f"{tokens} tokens", work, args.timeout)), flush=True)


def guess_text(line):
    text = f"{line['tokens']:>5} tokens, {line['arm']}"
    if "failed" in line:
        return f"{text}, guesses: failed: {line['failed'][:120]}"
    text += f", {'other tokens each run' if line['fresh'] else 'the same tokens'}: {line['us']['p50']:.1f} us"
    if "gain_us" not in line:
        return text + " without guesses"
    text += f", {line['speculate_mib']:.0f} MiB, {line['wrong_percent']:.0f} % made wrong: {line['guesses_a_run']:.1f} guesses a run, {line['hit_rate']:.0%} right, gain {line['gain_us']:.1f} us"
    return text + (f", a wrong guess costs {line['wrong_guess_us']:.2f} us" if "wrong_guess_us" in line else "")


def summary(lines):
    def cell(line):
        return "failed" if "failed" in line else f"{line['us']['p50']:.1f}"
    out = []
    for tokens in dict.fromkeys(line["tokens"] for line in lines):
        of_tokens = [line for line in lines if line["tokens"] == tokens]
        own = [line for line in of_tokens if not line["bench"].endswith("/guesses")]
        out += [guess_text(line) for line in of_tokens if line["bench"].endswith("/guesses")]
        if not own:
            continue
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
    parser.add_argument("--speculate", default="", help="MiB of weights asked for ahead; several, with commas")
    parser.add_argument("--wrong", default="0,25,50,75,100", help="speculate: percent of the guesses that are made wrong")
    parser.add_argument("--repeats", type=int, default=3, help="speculate: processes of each kind")
    parser.add_argument("--work", type=folder, help="where weights are written (a ram disk: 1.2 GB)")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("options", nargs="*", help="further options of ccks-run, after --")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("moe_layer: no GPU", file=sys.stderr)
        return 77
    args.arms, args.torch = ([name for name in text.split(",") if name] for text in (args.arms, args.torch))
    args.speculate, args.wrong = ([float(text) for text in texts.split(",") if text] for texts in (args.speculate, args.wrong))
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
