#!/usr/bin/env python3
"""Every example under every policy on one device, each verified against the reference interpreter in the same process.

Prints a JSON line each: what ccks-run says, with commit and settings. Exits 1 if any run fails or does not verify.
usage: bench/examples.py [--device host|cuda] [--ccks-run build/scheduler/tools/ccks-run] [--iters N]
"""
import argparse
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # importing leaves nothing in the tree
import table  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = {  # small enough for the f64 reference; the defaults of the others are
    "mlp": {}, "transformer_block": {}, "early_exit": {}, "conv_block": {}, "pipeline": {}, "stack_machine": {}, "varying_depth": {},
    "bi_rnn": {}, "tree_lstm": {}, "mv_rnn": {}, "drnn": {},
    "exit_per_layer": {"d": 64, "heads": 2, "ffn": 128},
    "moe_layer": {"experts": 8, "top": 2, "d": 64, "ffn": 32},
    "llama": {"layers": 2, "d": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512, "context": 64},
    "llama_batch": {"layers": 2, "d": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512, "context": 64},
    "llama_serve": {"layers": 2, "d": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512, "context": 64, "page": 16, "seats": 8, "n": 6, "m": 3},
    "ragged_encoder": {"d": 64, "heads": 2, "ffn": 128, "sequences": 5, "rows": 60},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--iters", type=int, default=30)
    args = parser.parse_args()
    failed = 0
    for name, dims in EXAMPLES.items():
        for policy in ("static", "lookahead", "reactive"):
            command = [args.ccks_run, f"{ROOT}/spec/examples/{name}.yaml", "--device", args.device, "--policy", policy,
                       "--iters", str(args.iters), "--verify", "--json"]
            for dim, value in dims.items():
                command += ["--set", f"{dim}={value}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            line = {"bench": "examples", "commit": table.commit(), "example": name, "set": dims, "exit": done.returncode}
            if done.returncode == 0:
                line.update(json.loads(done.stdout))
            else:
                failed += 1
                line["error"] = done.stderr.strip()
            print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
