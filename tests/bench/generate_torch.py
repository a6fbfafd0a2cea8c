"""GPT-2 124M with random weights in transformers, float32: generate with its cache, as bench_generate does, medians of rounds. Prints one JSON line.

generate_torch.py --prompt P --tokens N --batch B --threads T
"""
import argparse
import json
import statistics
import time

import torch
import transformers

a = argparse.ArgumentParser()
for name, default in (("prompt", 32), ("tokens", 64), ("batch", 1), ("threads", 2)):
    a.add_argument(f"--{name}", type=int, default=default)
a = a.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
ids = torch.randint(0, 50257, (a.batch, a.prompt))


class Clock(transformers.StoppingCriteria):
    """The time at which each token was chosen."""

    def __init__(self):
        self.times = []

    def __call__(self, ids, scores, **more):
        self.times.append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool)


def rounds(tokens):
    clock = Clock()
    with torch.inference_mode():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                       pad_token_id=50256, use_cache=True, stopping_criteria=[clock])
    return [end - begin for begin, end in zip(clock.times, clock.times[1:])]


rounds(2)
round_s = statistics.median(rounds(a.tokens))
print(json.dumps({"what": "transformers", "version": transformers.__version__, "torch": torch.__version__, "batch": a.batch,
                  "threads": a.threads, "prompt": a.prompt, "tokens": a.tokens, "tokens_per_s": round(a.batch / round_s, 1),
                  "ms_per_round": round(round_s * 1e3, 2)}))
