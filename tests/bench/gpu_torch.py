"""Measures PyTorch with the shapes of bench_train: one JSON line each.

gpu_torch.py kernels --model gpt2-124m|llama-1b --batch B --seq T [--vocab V] [--dtype bfloat16|float32]
gpu_torch.py train   --model gpt2-124m|llama-1b --batch B --seq T [--vocab V] [--steps S] [--eager]

Kernels have the names of bench_train's ops and their number of calls per step. If PyTorch has a fused kernel, it is measured;
otherwise the output of torch.compile. --vocab 50304 gives GPT-2 the padded vocabulary of nanoGPT, so that its rows of logits
begin at multiples of 128 bytes, where dtd's plan also places the rows of 50257. Training uses float32 parameters, fused AdamW,
autocast to bfloat16, torch.compile and clipping to 1. --device cpu and --layers 1 run the script on a machine without a GPU.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

MODELS = {
    "gpt2-124m": dict(layers=12, heads=12, kv=12, dim=768, ffn=3072, vocab=50257, llama=False),
    "llama-1b": dict(layers=16, heads=32, kv=8, dim=2048, ffn=8192, vocab=128256, llama=True),
}


def rotate(x, angles):
    b, t, h, d = x.shape
    y = torch.view_as_complex(x.float().reshape(b, t, h, d // 2, 2)) * angles[:t, None, :]
    return torch.view_as_real(y).reshape(b, t, h, d).to(x.dtype)


def angles(seq, dim, device):
    f = 500000.0 ** (-torch.arange(0, dim, 2, device=device).double() / dim)
    return torch.polar(torch.ones(seq, dim // 2, device=device), (torch.arange(seq, device=device)[:, None] * f).float())


def swiglu(a, b):
    return F.silu(a) * b


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m, d, hd = m, m["dim"], m["dim"] // m["heads"]
        norm = (lambda: nn.RMSNorm(d, eps=1e-5)) if m["llama"] else (lambda: nn.LayerNorm(d))
        bias = not m["llama"]
        self.n1, self.n2 = norm(), norm()
        self.qkv = nn.Linear(d, (m["heads"] + 2 * m["kv"]) * hd, bias=bias)
        self.proj = nn.Linear(d, d, bias=bias)
        self.up = nn.Linear(d, m["ffn"] * (2 if m["llama"] else 1), bias=bias)
        self.down = nn.Linear(m["ffn"], d, bias=bias)

    def forward(self, x, turn):
        m, (b, t, d) = self.m, x.shape
        hd = d // m["heads"]
        q, k, v = self.qkv(self.n1(x)).split((d, m["kv"] * hd, m["kv"] * hd), dim=2)
        q, k, v = q.view(b, t, -1, hd), k.view(b, t, -1, hd), v.view(b, t, -1, hd)
        if m["llama"]:
            q, k = rotate(q, turn), rotate(k, turn)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=m["heads"] != m["kv"])
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        h = self.up(self.n2(x))
        h = swiglu(*h.chunk(2, dim=2)) if m["llama"] else F.gelu(h, approximate="tanh")
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, m, seq):
        super().__init__()
        self.m, d = m, m["dim"]
        self.wte = nn.Embedding(m["vocab"], d)
        self.wpe = None if m["llama"] else nn.Embedding(seq, d)
        self.h = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = nn.RMSNorm(d, eps=1e-5) if m["llama"] else nn.LayerNorm(d)

    def forward(self, ids, targets, turn):
        x = self.wte(ids)
        if self.wpe is not None:
            x = x + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x, turn)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, self.m["vocab"]), targets.view(-1))


class Clock:
    """Seconds of f(), the median of several runs; on a GPU measured by events around a batch of calls."""

    def __init__(self, device):
        self.cuda = device == "cuda"

    def __call__(self, f, runs=20):
        for _ in range(3 if self.cuda else 1):
            f()
        times = []
        for _ in range(runs if self.cuda else 2):
            if self.cuda:
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                f()
                b.record()
                b.synchronize()
                times.append(a.elapsed_time(b) * 1e-3)
            else:
                start = time.perf_counter()
                f()
                times.append(time.perf_counter() - start)
        return statistics.median(times)


def backward(y, inputs, dy):
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def products(m):
    """(in, out, calls per forward pass) of every product."""
    d, n, hd = m["dim"], m["layers"], m["dim"] // m["heads"]
    yield d, d, n
    yield (d, m["kv"] * hd, 2 * n) if m["llama"] else (d, 2 * d, n)
    yield d, d, n
    yield d, m["ffn"], n * (2 if m["llama"] else 1)
    yield m["ffn"], d, n
    yield d, m["vocab"], 1


def kernel_rows(m, args):
    """(name, calls per step, function)"""
    dev, dt = args.device, getattr(torch, args.dtype)
    t, d, f, hd, n = args.batch * args.seq, m["dim"], m["ffn"], m["dim"] // m["heads"], m["layers"]
    rand = lambda *s: torch.randn(*s, device=dev, dtype=dt)
    leaf = lambda *s: rand(*s).requires_grad_()
    compiled = torch.compile if not args.eager else (lambda g: g)
    for k, o, calls in products(m):
        x, w, dy = rand(t, k), rand(o, k), rand(t, o)
        yield "gemm", calls, lambda: F.linear(x, w)
        yield "gemm", calls, lambda: dy @ w
        yield "gemm", calls, lambda: dy.t() @ x
    q = leaf(args.batch, m["heads"], args.seq, hd)
    k, v = (leaf(args.batch, m["kv"], args.seq, hd) for _ in range(2))
    attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=m["heads"] != m["kv"])
    yield "attention", n, attend
    o = attend()
    yield "attention_grad", n, backward(o, (q, k, v), torch.randn_like(o))
    x, res, wn, bn = rand(t, d), rand(t, d), leaf(d), leaf(d)
    norm = (lambda a, r: F.rms_norm(a + r, (d,), wn)) if m["llama"] else (lambda a, r: F.layer_norm(a + r, (d,), wn, bn))
    name = "rmsnorm" if m["llama"] else "layernorm"
    cnorm = compiled(norm)
    yield name, 2 * n + 1, lambda: cnorm(x, res)
    xl = leaf(t, d)
    y = cnorm(xl, res)
    yield name + "_grad", 2 * n + 1, backward(y, (xl, wn) if m["llama"] else (xl, wn, bn), torch.randn_like(y))
    a, b = leaf(t, f), leaf(t, f)
    act = compiled(swiglu) if m["llama"] else compiled(lambda u, _: F.gelu(u, approximate="tanh"))
    name = "swiglu" if m["llama"] else "gelu"
    yield name, n, lambda: act(a.detach(), b.detach())
    y = act(a, b)
    yield name + "_grad", n, backward(y, (a, b) if m["llama"] else (a,), torch.randn_like(y))
    if m["llama"]:
        turn, heads = angles(args.seq, hd, dev), rand(args.batch, args.seq, m["heads"] + m["kv"], hd)
        crot = compiled(rotate)
        yield "rope", 2 * n, lambda: crot(heads, turn)  # forward and backward; q and k together
    table, ids = leaf(m["vocab"], d), torch.randint(m["vocab"], (t,), device=dev)
    yield "embed", 1, lambda: F.embedding(ids, table.detach())
    y = F.embedding(ids, table)
    yield "embed_grad", 1, backward(y, (table,), torch.randn_like(y))
    logits, targets = leaf(t, m["vocab"]), torch.randint(m["vocab"], (t,), device=dev)
    loss = compiled(lambda z, g: F.cross_entropy(z, g))
    yield "cross_entropy", 1, lambda: torch.autograd.grad(loss(logits, targets), logits)
    del logits, loss
    params = [torch.randn(*p.shape, device=dev, requires_grad=True) for p in Model(m, args.seq).to("meta").parameters()]
    for p in params:
        p.grad = torch.randn_like(p)
    adam = torch.optim.AdamW(params, lr=1e-4, fused=True)
    yield "adamw", 1, adam.step
    yield "norm", 1, lambda: torch.nn.utils.get_total_norm([p.grad for p in params])
    yield "cast", 1, lambda: [p.detach().to(torch.bfloat16) for p in params]


def kernels(m, args):
    clock, sums = Clock(args.device), {}
    for name, calls, f in kernel_rows(m, args):
        sums.setdefault(name, [0, 0.0])
        sums[name][0] += calls
        sums[name][1] += calls * clock(f)
    for name, (calls, seconds) in sums.items():
        print(json.dumps({"bench": "kernel_torch", "model": args.model, "dtype": args.dtype, "vocab": m["vocab"],
                          "name": name, "calls": calls,
                          "ms": round(seconds * 1e3, 4)}), flush=True)


def train(m, args):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Model(m, args.seq).to(args.device)
    step_model = model if args.eager else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    turn = angles(args.seq, m["dim"] // m["heads"], args.device)
    ids, targets = (torch.randint(m["vocab"], (args.batch, args.seq), device=args.device) for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = step_model(ids, targets, turn)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step_s = Clock(args.device)(step, args.steps)
    print(json.dumps({"bench": "train_torch", "torch": torch.__version__, "mode": "eager" if args.eager else "compile",
                      "model": args.model, "dtype": args.dtype, "batch": args.batch, "seq": args.seq, "vocab": m["vocab"],
                      "step_s": round(step_s, 5), "tokens_per_s": round(args.batch * args.seq / step_s, 1)}), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=("kernels", "train"))
    p.add_argument("--model", choices=MODELS, default="gpt2-124m")
    for name, default in (("batch", 16), ("seq", 1024), ("steps", 10), ("layers", 0), ("vocab", 0)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    p.add_argument("--device", default="cuda")
    p.add_argument("--eager", action="store_true")
    args = p.parse_args()
    m = dict(MODELS[args.model])
    m["layers"] = args.layers or m["layers"]
    m["vocab"] = args.vocab or m["vocab"]
    (kernels if args.what == "kernels" else train)(m, args)


if __name__ == "__main__":
    main()
