#!/usr/bin/env python3
"""Serving a Llama: requests that arrive over time, ccks' continuous batching with paged keys and values beside PyTorch's padded static batches, in one run.

A checkpoint with random weights is made by transformers, and a seeded trace: arrivals are Poisson, lengths of prompts and answers lognormal. ccks-run --serve replays
it under each arm; of some requests every token must be the one that transformers takes in float32 after the same tokens, or as good within twice the error of its bf16
(bench/llama_check.py), else no time is printed. PyTorch takes the requests that have come, up to --seats at a time, pads prompts to the longest of them and decodes by
a CUDA graph of a step with a static cache (`graph`; `compile`: of torch.compile's making) until all are done; it masks no padding, which makes it faster and its tokens
useless. Prints a JSON line per arm and a table last. Exits 77 without PyTorch or transformers.
usage: bench/llama_serve.py [--size tiny|1b|3b|8b] [--requests N] [--rate N] [--arms A[,A]] [--torch graph,compile]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import llama_check  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from llama_decode import ARMS  # noqa: E402
from micro import folder, names_of, percentile  # noqa: E402


def make_trace(args, vocabulary):
    random = numpy.random.default_rng(args.seed)

    def lengths(mean, most):
        sigma = 0.6
        return numpy.clip(random.lognormal(numpy.log(mean) - sigma ** 2 / 2, sigma, args.requests), 4, most).astype(int)

    arrivals = numpy.cumsum(random.exponential(1e3 / args.rate, args.requests))
    prompts, answers = lengths(args.prompt, 4 * args.prompt), lengths(args.answer, 4 * args.answer)
    return [{"arrival_ms": float(a), "prompt": random.integers(0, vocabulary, p).tolist(), "max_tokens": int(n)} for a, p, n in zip(arrivals, prompts, answers)]


class Judge:
    """Tokens of some requests against transformers' own choice after the same ones."""

    def __init__(self, model, trace, count):
        self.model, self.trace = model, trace
        self.picked = sorted(range(len(trace)), key=lambda i: len(trace[i]["prompt"]) * 7919 % 101)[:count]
        import copy
        self.exact = copy.deepcopy(model).float()

    def wrong(self, served):
        """What is wrong with them, or nothing."""
        for i in self.picked:
            tokens, prompt = served[i]["tokens"], numpy.array(self.trace[i]["prompt"])
            if len(tokens) != self.trace[i]["max_tokens"]:
                return f"request {i} has {len(tokens)} tokens, not {self.trace[i]['max_tokens']}"
            truth = llama_check.reference(self.exact, prompt, tokens)
            tolerance = 2 * llama_check.difference(llama_check.reference(self.model, prompt, tokens), truth)
            others = llama_check.unlike(truth, tokens, tolerance)[1]
            if others:
                return f"request {i}: tokens {others[:5]} are not transformers'"
        return None


def ours(args, arm, folder, work, trace, judge):
    with open(f"{work}/requests.json", "w") as file:
        json.dump(trace, file)
    longest = max(len(r["prompt"]) + r["max_tokens"] for r in trace)
    command = [args.ccks_run, os.path.join(llama_check.ROOT, "spec/examples/llama_serve.yaml"), "--device", args.device, "--weights", folder, "--quiet", "--json", "--arm", arm,
               "--set", f"context={-(-longest // 64) * 64}", "--set", f"seats={args.seats}", "--set", f"n={args.seats}", "--set", f"m={args.seats}",
               "--serve-rows", str(args.rows), "--ahead", str(args.ahead), "--serve", f"{work}/requests.json", "--serve-tokens", f"{work}/tokens.json"]
    if args.pool:
        command += ["--set", f"pool={args.pool}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode != 0:
        return {"arm": arm, "failed": done.stderr.strip()[-300:]}
    with open(f"{work}/tokens.json") as file:
        wrong = judge.wrong(json.load(file))
    return {"arm": arm, "failed": wrong} if wrong else {"arm": arm, **json.loads(done.stdout)["served"]}


class StaticBatches:
    """A graph of a step of `batch` rows, with keys and values in place. Compiled, or of the model as it is."""

    def __init__(self, model, how, batch, room):
        from transformers import StaticCache
        self.model, self.batch = model, batch
        try:
            self.cache = StaticCache(config=model.config, max_cache_len=room)
        except TypeError:
            self.cache = StaticCache(config=model.config, batch_size=batch, max_cache_len=room, device=model.device, dtype=torch.bfloat16)
        self.position = torch.zeros(1, dtype=torch.long, device=model.device)
        self.token = torch.ones((batch, 1), dtype=torch.long, device=model.device)
        self.decode = torch.compile(model, mode="reduce-overhead") if how == "compile" else model
        self.prefill(8)
        for _ in range(4):
            self.step()
        self.replay = self.step
        if how == "graph" and model.device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            self.replay = graph.replay

    def step(self):
        with torch.no_grad():
            out = self.decode(self.token, past_key_values=self.cache, cache_position=self.position, position_ids=self.position[None].expand(self.batch, 1), use_cache=True)
            self.token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
            self.position += 1

    def prefill(self, length):
        self.cache.reset()  # some versions count positions themselves
        with torch.no_grad():
            ids = torch.ones((self.batch, length), dtype=torch.long, device=self.model.device)
            self.model(ids, past_key_values=self.cache, cache_position=torch.arange(length, device=self.model.device), use_cache=True, logits_to_keep=1)
            self.position.fill_(length)


def wait_for_device():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def static_batches(args, how, model, trace):
    """Replays the trace; of each request when its first and its last token were there."""
    if model.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # PyTorch 2.11's fails for a prompt of 300 tokens before a longer static cache
    room = max(len(r["prompt"]) for r in trace) + max(r["max_tokens"] for r in trace) + 16
    batches = StaticBatches(model, how, args.seats, room)
    wait_for_device()
    begun, left, first, end = time.perf_counter(), list(range(len(trace))), {}, {}
    now = lambda: (time.perf_counter() - begun) * 1e3  # noqa: E731
    while left:
        if now() < trace[left[0]]["arrival_ms"]:
            time.sleep((trace[left[0]]["arrival_ms"] - now()) / 1e3)
        taken = [i for i in left if trace[i]["arrival_ms"] <= now()][:args.seats]
        left = left[len(taken):]
        batches.prefill(max(len(trace[i]["prompt"]) for i in taken))
        for count in range(1, max(trace[i]["max_tokens"] for i in taken) + 1):
            batches.replay()
            wait_for_device()  # tokens go to the clients
            for i in taken:
                if count == 1:
                    first[i] = now() - trace[i]["arrival_ms"]
                if count == trace[i]["max_tokens"]:
                    end[i] = now() - trace[i]["arrival_ms"]
    took, tokens = now(), sum(r["max_tokens"] for r in trace)

    def both(values):
        return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}

    return {"arm": f"torch {how}, static batches", "torch": torch.__version__, "requests": len(trace), "tokens": tokens, "ms": took, "tokens_s": tokens / took * 1e3,
            "ttft_ms": both(list(first.values())), "latency_ms": both(list(end.values())),
            "tpot_ms": both([(end[i] - first[i]) / (trace[i]["max_tokens"] - 1) for i in first if trace[i]["max_tokens"] > 1])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccks-run", default=os.path.join(llama_check.ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--size", default="1b", choices=llama_check.SIZES)
    parser.add_argument("--device", default="cuda", choices=["host", "cuda"])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rate", type=float, default=200, help="arrivals a second")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt on average, four times as many at most")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer, likewise")
    parser.add_argument("--seats", type=int, default=64, help="sequences at a time")
    parser.add_argument("--rows", type=int, default=256, help="rows of a step at most, prompts among them")
    parser.add_argument("--pool", type=int, default=0, help="pages of all sequences; 0: eight a seat")
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checked", type=int, default=4, help="requests whose tokens are held against transformers")
    parser.add_argument("--arms", type=names_of(ARMS), default="copilot,static")
    parser.add_argument("--torch", type=names_of(["graph", "compile"]), default="graph,compile")
    parser.add_argument("--work", type=folder, help="where the checkpoint is made (a ram disk, for large ones)")
    parser.add_argument("--timeout", type=float, default=180)
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        model = llama_check.make_checkpoint(args.size, f"{work}/checkpoint", 1, "")
        trace = make_trace(args, model.config.vocab_size)
        judge = Judge(model, trace, args.checked)
        for arm in args.arms:
            try:
                lines.append(ours(args, arm, f"{work}/checkpoint", work, trace, judge))
            except subprocess.TimeoutExpired as error:
                lines.append({"arm": arm, "failed": str(error)[:300]})
            print(json.dumps({"bench": "llama_serve", "size": args.size, **lines[-1]}), flush=True)
        for how in args.torch:
            lines.append(static_batches(args, how, model, trace))
            print(json.dumps({"bench": "llama_serve", "size": args.size, **lines[-1]}), flush=True)
    print(f"{'arm':<30}{'tokens/s':>10}{'TTFT p50':>10}{'p99 ms':>10}{'TPOT p50':>10}{'p99 ms':>10}{'whole p50':>11}{'p99 ms':>10}")
    for line in lines:
        if "failed" in line:
            print(f"{line['arm']:<30}failed: {line['failed'][:200]}")
            continue
        values = [line[name][p] for name in ("ttft_ms", "tpot_ms", "latency_ms") for p in ("p50", "p99")]
        print(f"{line['arm']:<30}{line['tokens_s']:>10.0f}" + "".join(f"{v:>{w}.2f}" for v, w in zip(values, (10, 10, 10, 10, 11, 10))))
    return 1 if any("failed" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
