"""GPT-2 124M in PyTorch, float32, AdamW: the same step as bench_train, one JSON line.

train_torch.py --batch B --seq T --threads N [--steps S] [--compile] [--ddp]

One process with N threads processes B samples of T tokens per step; with --ddp, N processes with one thread (gloo), B samples each.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, DIM, VOCAB = 12, 12, 768, 50257


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.c_fc, self.c_out = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, HEADS, d // HEADS).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(seq, DIM)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(DIM)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def measure(args, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = GPT2(args.seq)
    step_model = nn.parallel.DistributedDataParallel(model) if args.ddp else model
    if args.compile:
        step_model = torch.compile(step_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(VOCAB, (args.batch, args.seq))
    targets = torch.randint(VOCAB, (args.batch, args.seq))
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
            loss = step_model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def report(args, step_s, processes):
    tokens = args.batch * args.seq * processes / step_s
    matmul = LAYERS * 12 * DIM * DIM + VOCAB * DIM
    flop = 6 * matmul + 12 * LAYERS * DIM * args.seq
    print(json.dumps({
        "bench": "train_torch", "torch": torch.__version__, "mode": "compile" if args.compile else "eager",
        "dtype": "bfloat16" if args.bf16 else "float32",
        "processes": processes, "threads": args.threads if not args.ddp else 1, "batch": args.batch, "seq": args.seq,
        "step_s": round(step_s, 4), "tokens_per_s": round(tokens, 1), "gflops": round(tokens * flop * 1e-9, 1)}), flush=True)


def worker(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=args.port, RANK=str(rank), WORLD_SIZE=str(args.threads))
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.distributed.init_process_group("gloo")
    step_s = measure(args, 1)
    if rank == 0:
        report(args, step_s, args.threads)
    torch.distributed.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    for name, default in (("batch", 4), ("seq", 64), ("threads", 1), ("steps", 4)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    p.add_argument("--ddp", action="store_true")
    p.add_argument("--port", default="29511")
    args = p.parse_args()
    if args.ddp:
        torch.multiprocessing.spawn(worker, (args,), nprocs=args.threads)
    else:
        report(args, measure(args, args.threads), 1)


if __name__ == "__main__":
    main()
