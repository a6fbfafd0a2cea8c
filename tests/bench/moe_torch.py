"""A mixture of experts in PyTorch, float32, AdamW: the step that tests/bench/moe compares with, one JSON line.

moe_torch.py --experts E --choices K --dim D --ffn F --layers L --batch B --seq T --threads N [--steps S] [--engine loop|grouped]

`loop` multiplies the rows of each expert that has any, as transformers' eager experts do; `grouped` uses torch._grouped_mm.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 256


class Experts(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.k, self.engine = a.choices, a.engine
        self.router = nn.Linear(a.dim, a.experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(a.experts, a.ffn, a.dim) * 0.02)
        self.w3 = nn.Parameter(torch.randn(a.experts, a.ffn, a.dim) * 0.02)
        self.w2 = nn.Parameter(torch.randn(a.experts, a.dim, a.ffn) * 0.02)

    def forward(self, x):
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        weights, ids = torch.topk(F.softmax(self.router(x).float(), dim=-1), self.k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        y = self.grouped(x, weights, ids) if self.engine == "grouped" else self.loop(x, weights, ids)
        return y.reshape(shape)

    def loop(self, x, weights, ids):
        y = torch.zeros_like(x)
        for e in range(self.w1.shape[0]):
            token, choice = torch.where(ids == e)
            if token.numel() == 0:
                continue
            rows = x[token]
            rows = F.silu(rows @ self.w1[e].T) * (rows @ self.w3[e].T)
            y.index_add_(0, token, (rows @ self.w2[e].T) * weights[token, choice, None])
        return y

    def grouped(self, x, weights, ids):
        order = torch.argsort(ids.reshape(-1), stable=True)
        counts = torch.bincount(ids.reshape(-1), minlength=self.w1.shape[0])
        ends = torch.cumsum(counts, 0).to(torch.int32)
        rows = x[order // self.k]
        h = F.silu(torch._grouped_mm(rows, self.w1.transpose(-2, -1), offs=ends))
        h = h * torch._grouped_mm(rows, self.w3.transpose(-2, -1), offs=ends)
        out = torch._grouped_mm(h, self.w2.transpose(-2, -1), offs=ends) * weights.reshape(-1)[order, None]
        return torch.zeros_like(x).index_add_(0, order // self.k, out)


class Dense(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.w1, self.w3 = nn.Linear(a.dim, a.ffn, bias=False), nn.Linear(a.dim, a.ffn, bias=False)
        self.w2 = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.qkv, self.o = nn.Linear(a.dim, 3 * a.dim, bias=False), nn.Linear(a.dim, a.dim, bias=False)
        self.ffn = Experts(a) if a.experts else Dense(a)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, dim=2))
        q, k = (torch.cat((y[..., ::2] * cos - y[..., 1::2] * sin, y[..., ::2] * sin + y[..., 1::2] * cos), -1) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.ffn(self.n2(x))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, a.dim), nn.Linear(a.dim, VOCAB, bias=False)
        self.blocks, self.norm = nn.ModuleList(Block(a) for _ in range(a.layers)), nn.RMSNorm(a.dim)
        half = a.dim // a.heads // 2
        angle = torch.outer(torch.arange(a.seq), 10000.0 ** (-torch.arange(half) / half))
        self.cos, self.sin = torch.cos(angle), torch.sin(angle)

    def forward(self, ids, targets):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    for name, default in (("experts", 8), ("choices", 2), ("dim", 512), ("ffn", 1024), ("layers", 2), ("heads", 8), ("batch", 4),
                          ("seq", 256), ("threads", 2), ("steps", 12)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--engine", choices=("loop", "grouped"), default="loop")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Model(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    ids, targets = torch.randint(VOCAB, (a.batch, a.seq)), torch.randint(VOCAB, (a.batch, a.seq))
    times = []
    for _ in range(a.steps):
        start = time.perf_counter()
        loss = model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    step = statistics.median(times[2:])
    print(json.dumps({"bench": "moe_torch", "engine": a.engine if a.experts else "dense", "experts": a.experts, "choices": a.choices,
                      "step_s": round(step, 5), "tokens_per_s": round(a.batch * a.seq / step, 1)}), flush=True)


main()
