#!/usr/bin/env python3
"""Llama decode, one step after the other: ccks under each arm, PyTorch eager, a CUDA graph of it and torch.compile, in one run.

A checkpoint with random weights is made by transformers. Each of our arms generates in one process that also puts out the logits of
every step; its time is printed only if those logits agree with transformers' (bench/llama_check.py says how). Prints a JSON line per
arm and context, with bytes of weights and keys over the step's time, and with --trace a table of ops: bytes, floor, the time that
bodies took, and the time that workers spent waiting, of one step, the last two averaged over the workers. Exits 77 without PyTorch or transformers.
usage: bench/llama_decode.py [--size tiny|1b|3b|8b] [--batch N] [--context N[,N]] [--arms A[,A]] [--torch eager,graph,compile] [--trace]
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True
import llama_check  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from micro import folder, names_of, percentile  # noqa: E402

ROOT = llama_check.ROOT
BYTES_PER_US = 4.67e6  # what an H200 reads at most


def bytes_of_step(model, context, batch):
    config = model.config
    weights = sum(p.numel() * 2 for p in model.parameters())
    if not config.tie_word_embeddings:
        weights -= (config.vocab_size - 1) * config.hidden_size * 2  # of the embeddings one row is read
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return weights + 4 * config.num_hidden_layers * config.num_key_value_heads * head * context * batch


class Judge:
    """Holds logits against the model in float32; transformers' own error in bf16 is the measure."""

    def __init__(self, model, prompt):
        self.model, self.prompt, self.truths = model, prompt, {}

    def judge(self, tokens, logits):
        key = str(tokens)
        if key not in self.truths:
            theirs = llama_check.reference(self.model, self.prompt, tokens)
            self.truths[key] = (theirs, llama_check.reference(self.exact(), self.prompt, tokens))
        theirs, truth = self.truths[key]
        tolerance = 2 * llama_check.difference(theirs, truth)
        return llama_check.difference(logits, truth) <= tolerance and not llama_check.unlike(truth, tokens, tolerance)[1]

    def exact(self):
        if not hasattr(self.model, "exact"):
            import copy
            object.__setattr__(self.model, "exact", copy.deepcopy(self.model).float())
        return self.model.exact


def ours(args, arm, folder, prompt, work, judge, line):
    options = types.SimpleNamespace(ccks_run=args.ccks_run, device=args.device, context=prompt.shape[-1] + args.tokens + 8,
                                    tokens=args.tokens, timeout=args.timeout, options=["--arm", arm, "--ahead", "2"] + ["--no-fold"] * args.no_fold + ["--no-row-tags"] * args.no_row_tags + ["--no-relays"] * args.no_relays)
    result, logits = llama_check.ours(options, folder, prompt, work)
    if not judge.judge(result["generated"]["tokens"], logits):
        return {**line, "arm": arm, "failed": "its logits are not those of transformers"}
    times = result["generated"]["us"][args.warmup:]
    return {**line, "arm": arm, "code": result["code"]["kind"], "device": result["device_name"], "first_token_us": result["generated"]["first_token_us"],
            "us": {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "max": max(times)},
            "tb_s": line["bytes"] / percentile(times, 0.5) / 1e6}


def torch_steps(model, how, context, runs, batch):
    """Microseconds of each step of one token behind `context` others, keys and values in place."""
    from transformers import StaticCache
    room = context + runs + 64  # some versions count every step as one further
    try:
        cache = StaticCache(config=model.config, max_cache_len=room)
    except TypeError:
        cache = StaticCache(config=model.config, batch_size=batch, max_cache_len=room, device=model.device, dtype=torch.bfloat16)
    step = model
    if how == "compile":
        step = torch.compile(model, mode="reduce-overhead", fullgraph=False)
    position = torch.tensor([context], device=model.device)
    token = torch.ones((batch, 1), dtype=torch.long, device=model.device)

    def once():
        return step(token, past_key_values=cache, cache_position=position, position_ids=position[None].expand(batch, 1), use_cache=True).logits[:, -1].argmax(-1)

    with torch.no_grad():
        model(torch.ones((batch, context), dtype=torch.long, device=model.device), past_key_values=cache,
              cache_position=torch.arange(context, device=model.device), use_cache=True)
        for _ in range(4):
            once()
        if how == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                once()
            once = graph.replay
        torch.cuda.synchronize()
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            once()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
    return times


def op_bytes(args, folder, position):
    """Bytes that each kind of op reads and writes in a step, as the planner sees it; nothing where there is no ccks-gen."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    dims = {"layers": "num_hidden_layers", "d": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
            "ffn": "intermediate_size", "vocab": "vocab_size"}
    command = [args.ccks_gen, "explain", *llama_check.spec_of(args.batch), "--json", "--device", "cuda"] + ["--no-fold"] * args.no_fold
    for name, value in {**{dim: config[key] for dim, key in dims.items()}, "context": position + 24, "pos": position}.items():
        command += ["--set", f"{name}={value}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        explained = json.loads(done.stdout)
        ops = explained["ops"]
    except (OSError, ValueError, KeyError):
        return {}, set(), None
    out, normed = collections.Counter(), set()
    for op in ops:
        name = re.sub(r"^layers\.\d+\.", "", op["name"])
        out[name] += op["bytes_read"] + op["bytes_written"]
        if op["kind"].startswith("rmsnorm+"):
            normed.add(name)
    return out, normed, explained.get("prediction", {}).get("us")


def op_table(args, folder, prompt, work):
    """Of one step in the middle: per kind of op, microseconds of bodies and of waiting, averaged over the workers."""
    numpy.save(f"{work}/prompt.npy", prompt.astype(numpy.int32))
    command = [args.ccks_run, *llama_check.spec_of(args.batch), "--device", args.device, "--weights", folder, "--quiet",
               "--json", "--set", f"context={prompt.shape[-1] + 24}", "--generate", "10", "--prompt-ids", f"{work}/prompt.npy", "--arm", "static",
               "--trace", f"{work}/trace.json"] + ["--no-fold"] * args.no_fold + ["--no-row-tags"] * args.no_row_tags + ["--no-relays"] * args.no_relays
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode != 0:
        return [f"no table: {done.stderr.strip()}"]
    workers = json.loads(done.stdout)["workers"]
    with open(f"{work}/trace.json") as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "task"]
    first = {}  # look at the embeddings of each run, of which every worker may have a part
    for event in (e for e in events if e["name"].startswith("gather")):
        run = (event["args"]["slot"], event["args"]["run"])
        first[run] = min(first.get(run, event["ts"]), event["ts"])
    starts = sorted(first.values())
    begin, end = starts[-3], starts[-2]  # a step lies between two looks at the embeddings
    kinds = collections.defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for event in events:
        if not begin <= event["ts"] < end:
            continue
        kind = kinds[re.sub(r"^layers\.\d+\.", "", event["name"])]
        kind[0] += 1
        body = event["dur"] - event["args"]["wait_us"]
        kind[1] += body / workers
        kind[2] += event["args"]["wait_us"] / workers
        kind[3] = max(kind[3], body)
    amounts, normed, predicted = op_bytes(args, folder, prompt.shape[-1])
    lines = [f"{'op':<36}{'tasks':>8}{'MB':>10}{'floor us':>10}{'bodies us':>11}{'waiting us':>12}{'longest us':>12}"]
    for name, (tasks, bodies, waiting, longest) in sorted(kinds.items(), key=lambda item: -item[1][1] - item[1][2]):
        amount = amounts.get(name, 0)
        lines.append(f"{name + (' of normed rows' if name in normed else ''):<36}{tasks:>8}{amount / 1e6:>10.2f}{amount / BYTES_PER_US:>10.1f}{bodies:>11.1f}{waiting:>12.1f}{longest:>12.1f}")
    total = [sum(kind[i] for kind in kinds.values()) for i in (1, 2)]
    lines.append(f"{'a step':<36}{'':>8}{sum(amounts.values()) / 1e6:>10.2f}{sum(amounts.values()) / BYTES_PER_US:>10.1f}{total[0]:>11.1f}{total[1]:>12.1f}"
                 f"   took {end - begin:.1f}" + (f", predicted {predicted:.1f}" if predicted else ""))
    return lines


ARMS = ["copilot", "static", "gpu_queue", "stream", "graph", "graph_pdl"]
TORCH = ["eager", "graph", "compile"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--ccks-gen", default=os.path.join(ROOT, "build/codegen/tools/ccks-gen"))
    parser.add_argument("--size", default="1b", choices=llama_check.SIZES)
    parser.add_argument("--device", default="cuda", choices=["host", "cuda"])
    parser.add_argument("--context", default="64,512", help="in the middle of what is measured")
    parser.add_argument("--batch", type=int, default=1, help="rows, all at the same position")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--warmup", type=int, default=8, help="steps that are not counted")
    parser.add_argument("--arms", type=names_of(ARMS), default="copilot,static,gpu_queue,graph,graph_pdl")
    parser.add_argument("--torch", type=names_of(TORCH), default="eager,graph,compile")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--no-fold", action="store_true", help="norms stay ops of their own")
    parser.add_argument("--no-row-tags", action="store_true", help="products of one row wait for events, in the same workers")
    parser.add_argument("--no-relays", action="store_true", help="steps go through workers' stages tile by tile, in the same workers")
    parser.add_argument("--work", type=folder, help="where the checkpoint is made (a ram disk, for large ones)")
    parser.add_argument("--timeout", type=float, default=120)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        model = llama_check.make_checkpoint(args.size, f"{work}/checkpoint", 1, "")
        for context in (int(text) for text in args.context.split(",")):
            length = max(1, context - args.tokens // 2)
            prompt = numpy.random.default_rng(context).integers(0, model.config.vocab_size, length if args.batch == 1 else (args.batch, length))
            judge = Judge(model, prompt)
            amount = bytes_of_step(model, context, args.batch)
            line = {"bench": "llama_decode", "size": args.size, "batch": args.batch, "context": context, "bytes": amount, "floor_us": amount / BYTES_PER_US}
            for arm in args.arms:
                try:
                    print(json.dumps(ours(args, arm, f"{work}/checkpoint", prompt, work, judge, line)), flush=True)
                except (SystemExit, subprocess.TimeoutExpired) as error:
                    print(json.dumps({**line, "arm": arm, "failed": str(error)[:300]}), flush=True)
            for how in args.torch if torch.cuda.is_available() else []:
                try:
                    times = torch_steps(model, how, context, args.tokens, args.batch)
                    p50 = percentile(times, 0.5)
                    print(json.dumps({**line, "arm": f"torch {how}", "torch": torch.__version__, "us": {"p50": p50, "p99": percentile(times, 0.99),
                                      "max": max(times)}, "tb_s": amount / p50 / 1e6}), flush=True)
                except Exception as error:  # noqa: BLE001 a rival that does not run is reported, not fatal
                    print(json.dumps({**line, "arm": f"torch {how}", "failed": str(error)[:300]}), flush=True)
            if args.trace:
                print("\n".join(op_table(args, f"{work}/checkpoint", prompt, work)), flush=True)


if __name__ == "__main__":
    main()
