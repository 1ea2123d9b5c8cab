#!/usr/bin/env python3
"""Transformer block on the CPU: ccks on the host device beside PyTorch eager, same shapes, same cores, one run.

Prints a JSON line per shape: median microseconds of both and their ratio. Needs PyTorch; exits 77 where there is none.
usage: bench/torch_block.py [--ccks-run build/scheduler/tools/ccks-run] [--threads N] [--iters N]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("torch_block: no PyTorch here, nothing to compare with", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPES = [  # n, d, heads, kv_heads, ffn; the context holds just this run's tokens
    (1, 1024, 16, 8, 2816),
    (16, 1024, 16, 8, 2816),
    (128, 1024, 16, 8, 2816),
]


def rope(x, theta=10000.0):
    n, heads, dim = x.shape
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.arange(n, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block:
    def __init__(self, n, d, heads, kv_heads, ffn):
        torch.manual_seed(1)
        self.n, self.d, self.heads, self.kv_heads = n, d, heads, kv_heads
        self.head_dim = d // heads
        kv = kv_heads * self.head_dim

        def weight(rows, columns):
            return torch.randn(rows, columns) / columns**0.5

        self.wq, self.wk, self.wv, self.wo = weight(d, d), weight(kv, d), weight(kv, d), weight(d, d)
        self.gate, self.up, self.down = weight(ffn, d), weight(ffn, d), weight(d, ffn)
        self.norm = torch.ones(d)
        self.x = torch.randn(n, d)

    def __call__(self):
        a = F.rms_norm(self.x, (self.d,), self.norm, 1e-5)
        q = rope((a @ self.wq.T).view(self.n, self.heads, self.head_dim))
        k = rope((a @ self.wk.T).view(self.n, self.kv_heads, self.head_dim))
        v = (a @ self.wv.T).view(self.n, self.kv_heads, self.head_dim)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        s = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0]
        h = self.x + s.transpose(0, 1).reshape(self.n, self.d) @ self.wo.T
        m = F.rms_norm(h, (self.d,), self.norm, 1e-5)
        return h + (F.silu(m @ self.gate.T) * (m @ self.up.T)) @ self.down.T


def torch_us(block, iters):
    with torch.inference_mode():
        for _ in range(max(3, iters // 10)):
            block()
        times = []
        for _ in range(iters):
            start = time.perf_counter()
            block()
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def ccks_us(program, shape, threads, iters):
    n, d, heads, kv_heads, ffn = shape
    dims = {"n": n, "d": d, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    command = [program, os.path.join(ROOT, "spec/examples/transformer_block.yaml"), "--device", "host", "--json",
               "--workers", str(threads), "--iters", str(iters), "--verify"]
    for name, value in dims.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"torch_block: ccks-run failed ({done.returncode}): {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--iters", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for shape in SHAPES:
        eager = torch_us(Block(*shape), args.iters)
        ours = ccks_us(args.ccks_run, shape, args.threads, args.iters)
        print(json.dumps({
            "bench": "transformer_block", "device": "host", "dtype": "f32", "threads": args.threads,
            "n": shape[0], "d": shape[1], "heads": shape[2], "kv_heads": shape[3], "ffn": shape[4],
            "torch": torch.__version__, "torch_eager_us": round(eager, 1), "ccks_us": ours["us"]["p50"],
            "ratio": round(ours["us"]["p50"] / eager, 3), "max_rel_err": ours["verify"]["max_rel_err"],
        }), flush=True)


if __name__ == "__main__":
    main()
