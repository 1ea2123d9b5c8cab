#!/usr/bin/env python3
"""A Llama checkpoint in transformers and in ccks: the same logits and the same greedy tokens?

Makes a checkpoint with random weights (or takes one with --checkpoint), generates with `ccks-run --generate`, and runs
transformers over the tokens that came out, so that every position is compared whatever happened before it: in float32, which
is taken for the truth, and in bf16, whose error sets the tolerance: twice that. Passes if all logits agree with the truth to that
tolerance, and each token is the one that the truth would take, or one whose logit is within that tolerance of it.
Exits 77 where PyTorch or transformers are missing.
usage: bench/llama_check.py [--size tiny|1b|3b|8b] [--checkpoint DIR] [--device host|cuda] [--tokens N] [--prompt N] [-- ccks-run options]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.dont_write_bytecode = True
from micro import folder, not_compiled  # noqa: E402

try:
    import numpy
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"llama_check: nothing to compare with: {error}", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
SIZES = {
    # A head of its own, and positions beyond the context that their scaling begins from.
    "tiny": dict(initializer_range=0.09, vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, rope_theta=10000.0, tie_word_embeddings=False,
                 rope_scaling=dict(LLAMA3_ROPE, factor=8.0, original_max_position_embeddings=32)),
    "1b": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=True, rope_scaling=LLAMA3_ROPE),
    "3b": dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
               num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=True, rope_scaling=LLAMA3_ROPE),
    "8b": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=False,
               rope_scaling=dict(LLAMA3_ROPE, factor=8.0)),
}


def make_checkpoint(size, folder, seed, shard):
    torch.manual_seed(seed)
    config = LlamaConfig(max_position_embeddings=16384, rms_norm_eps=1e-5, **SIZES[size])
    default, where = torch.get_default_dtype(), "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).to(where).eval() if where == "cpu" else make_on_gpu(config)
    torch.set_default_dtype(default)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    return model


def make_on_gpu(config):
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval()


def spec_of(batch):
    """The spec for so many rows, and what it is told of them."""
    name = "llama.yaml" if batch == 1 else "llama_batch.yaml"
    return [os.path.join(ROOT, "spec/examples", name), *([] if batch == 1 else ["--set", f"batch={batch}"])]


def ours(args, checkpoint, prompt, work):
    """What came out, and logits [tokens, vocab], or [rows, tokens, vocab] for a prompt of several rows, like its tokens."""
    batch = len(prompt) if prompt.ndim == 2 else 1
    numpy.save(f"{work}/prompt.npy", prompt.astype(numpy.int32))
    command = [args.ccks_run, *spec_of(batch), "--device", args.device, "--weights", checkpoint, "--json",
               "--set", f"context={args.context}", "--generate", str(args.tokens), "--prompt-ids", f"{work}/prompt.npy",
               "--output", f"logits={work}/logits.npy", *args.options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode != 0:
        sys.exit(f"llama_check: ccks-run failed ({done.returncode}): {done.stderr.strip()}")
    result = json.loads(done.stdout.splitlines()[-1])
    if reason := not_compiled(result):
        sys.exit(f"llama_check: by generic workers: {reason}")
    logits = numpy.load(f"{work}/logits.npy").reshape(args.tokens, batch, -1)
    if batch == 1:
        return result, logits[:, 0]
    result["generated"]["tokens"] = numpy.array(result["generated"]["tokens"]).reshape(args.tokens, batch).T.tolist()
    return result, logits.transpose(1, 0, 2)


def reference(model, prompt, tokens):
    """Logits that transformers gives where ours were given: after the prompt, and after each of our tokens but the last."""
    if prompt.ndim == 2:
        return numpy.stack([reference(model, row, tokens[i]) for i, row in enumerate(prompt)])
    ids = torch.tensor([[*prompt.tolist(), *tokens[:-1]]], device=model.device)
    with torch.no_grad():
        return model(ids).logits[0, len(prompt) - 1:].float().cpu().numpy()


def difference(logits, truth):
    """The largest one, against the largest logit of its position."""
    return float((numpy.abs(logits - truth).max(axis=-1) / numpy.abs(truth).max(axis=-1)).max())


def unlike(truth, tokens, tolerance):
    """The positions whose token is not that of the truth, and those of them where it is not as good either."""
    truth, tokens = truth.reshape(-1, truth.shape[-1]), numpy.array(tokens).reshape(-1)
    gaps = (truth.max(axis=1) - truth[numpy.arange(len(tokens)), tokens]) / numpy.abs(truth).max(axis=1)
    other = [i for i, token in enumerate(tokens) if token != truth[i].argmax()]
    return other, [i for i in other if gaps[i] > tolerance]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccks-run", default=os.path.join(ROOT, "build/scheduler/tools/ccks-run"))
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--checkpoint", help="a folder that transformers has saved; otherwise one is made with random weights")
    parser.add_argument("--work", type=folder, help="where to make it (a ram disk, for large ones)")
    parser.add_argument("--shard", default="", help="of the checkpoint made, at most so large, e.g. 500KB")
    parser.add_argument("--device", default="host", choices=["host", "cuda"])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="rows, by llama_batch.yaml where there are several")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("options", nargs="*", help="further options of ccks-run, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        checkpoint = args.checkpoint or f"{work}/checkpoint"
        started = time.time()
        if args.checkpoint:
            model = LlamaForCausalLM.from_pretrained(checkpoint, torch_dtype=torch.bfloat16).eval()
            model = model.to("cuda") if torch.cuda.is_available() else model
        else:
            model = make_checkpoint(args.size, checkpoint, args.seed, args.shard)
        made = time.time()
        shape = args.prompt if args.batch == 1 else (args.batch, args.prompt)
        prompt = numpy.random.default_rng(args.seed).integers(0, model.config.vocab_size, shape)
        result, mine = ours(args, checkpoint, prompt, work)
        tokens = result["generated"]["tokens"]
        theirs = reference(model, prompt, tokens)
        truth = reference(model.float(), prompt, tokens)
    tolerance = 2 * difference(theirs, truth)
    worst = difference(mine, truth)
    other, wrong = unlike(truth, tokens, tolerance)
    count = numpy.array(tokens).size
    passed = worst <= tolerance and not wrong and count == args.tokens * args.batch
    print(json.dumps({
        "check": "llama", "size": args.checkpoint or args.size, "device": result["device_name"], "batch": args.batch, "positions": count,
        "worst_logit_difference": round(worst, 5), "tolerance": round(tolerance, 5), "tokens_equal": count - len(other),
        "tokens_as_good": len(other) - len(wrong), "tokens_wrong": wrong, "passed": passed,
        "first_token_us": round(result["generated"]["first_token_us"], 1), "token_us": result["generated"]["token_us"],
        "seconds": {"checkpoint": round(made - started, 1), "all": round(time.time() - started, 1)},
    }))
    sys.exit(0 if passed else 3)


if __name__ == "__main__":
    main()
