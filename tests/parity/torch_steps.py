"""The small models' steps in PyTorch's autograd and torch.optim.AdamW, in float64, against what parity_dump wrote.

torch_steps.py PARITY_DUMP   (run by ctest; needs a python with torch in DTD_TORCH_PYTHON)
"""
import os
import subprocess
import sys
import tempfile

python = os.environ.get("DTD_TORCH_PYTHON")
if not python:
    print("skipped: DTD_TORCH_PYTHON names no python with torch")
    sys.exit(77)
if "DTD_TORCH_STEPS" not in os.environ:
    if subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        print(f"skipped: {python} has no torch")
        sys.exit(77)
    sys.exit(subprocess.run([python] + sys.argv, env={**os.environ, "DTD_TORCH_STEPS": "1"}).returncode)

import torch
import torch.nn.functional as F

F64 = torch.float64


def read_index(folder):
    numbers, steps, params = {}, [], []
    for line in open(f"{folder}/index"):
        key, *rest = line.split()
        if key == "step":
            steps.append([float(x) for x in rest])
        elif key == "param":
            params.append((rest[0], rest[1] == "1", int(rest[2]), int(rest[3]), [int(x) for x in rest[4:]]))
        else:
            numbers[key] = float(rest[0])
    return numbers, steps, params


def read_tensors(folder, name, params):
    flat = torch.frombuffer(bytearray(open(f"{folder}/{name}", "rb").read()), dtype=F64)
    out, at = {}, 0
    for fqn, _, _, _, shape in params:
        n = torch.Size(shape).numel()
        out[fqn] = flat[at:at + n].reshape(shape).clone()
        at += n
    assert at == flat.numel()
    return out


def attention(q, k, v, heads, kv_heads):
    b, s, _ = q.shape
    q, k, v = (x.view(b, s, n, -1).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, -1)


def rope(x, heads, theta):
    b, s, d = x.shape
    hd = d // heads
    freqs = theta ** (-torch.arange(0, hd, 2, dtype=F64) / hd)
    turn = torch.polar(torch.ones(s, hd // 2, dtype=F64), torch.outer(torch.arange(s, dtype=F64), freqs))
    pairs = torch.view_as_complex(x.view(b, s, heads, hd // 2, 2).contiguous())
    return torch.view_as_real(pairs * turn[:, None]).reshape(b, s, d)


def llama(p, ids, c):
    heads, kv = int(c["heads"]), int(c["kv_heads"])

    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["norm_eps"]) * w

    x = p["tok_embeddings.weight"][ids]
    for i in range(int(c["layers"])):
        w = {k[len(f"layers.{i}."):]: v for k, v in p.items() if k.startswith(f"layers.{i}.")}
        h = norm(x, w["attention_norm.weight"])
        q, k, v = (h @ w[f"attention.{n}.weight"].T for n in ("wq", "wk", "wv"))
        o = attention(rope(q, heads, c["rope_theta"]), rope(k, kv, c["rope_theta"]), v, heads, kv)
        x = x + o @ w["attention.wo.weight"].T
        h = norm(x, w["ffn_norm.weight"])
        x = x + (F.silu(h @ w["feed_forward.w1.weight"].T) * (h @ w["feed_forward.w3.weight"].T)) @ w["feed_forward.w2.weight"].T
    return norm(x, p["norm.weight"]) @ p["output.weight"].T


def gpt2(p, ids, c):
    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], c["norm_eps"])

    def affine(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(int(c["layers"])):
        h = f"transformer.h.{i}."
        q, k, v = affine(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, dim=-1)
        x = x + affine(attention(q, k, v, int(c["heads"]), int(c["heads"])), h + "attn.c_proj")
        x = x + affine(F.gelu(affine(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T


def near(what, ours, theirs, tolerance):
    difference = abs(ours - theirs)
    if not difference <= tolerance:
        sys.exit(f"{what}: {ours!r} and torch's {theirs!r} differ by {difference:g}, allowed {tolerance:g}")


def compare(what, params, ours, theirs):
    rms = (sum(t.pow(2).sum() for t in theirs.values()) / sum(t.numel() for t in theirs.values())).sqrt().item()
    for fqn, _, zero_lo, zero_hi, _ in params:
        a, b = ours[fqn].flatten(), theirs[fqn].flatten()
        keep = torch.ones_like(a, dtype=torch.bool)
        keep[zero_lo:zero_hi] = False
        worst = (a - b)[keep].abs().max().item()
        near(f"{what} of {fqn}", worst, 0.0, 1e-10 * max(b.abs().max().item(), 1e-3 * rms))


def check(arch, forward, program):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, arch, folder], check=True)
        c, steps, params = read_index(folder)
        init, grad, last = (read_tensors(folder, n, params) for n in ("init", "grad", "param"))
        tokens = torch.frombuffer(bytearray(open(f"{folder}/tokens", "rb").read()), dtype=torch.int32).long()
    batch, seq = int(c["batch"]), int(c["seq"])
    tokens = tokens.view(len(steps), batch, 2, seq)
    p = {n: t.requires_grad_() for n, t in init.items()}
    groups = [{"params": [p[x[0]] for x in params if x[1] == d], "weight_decay": c["weight_decay"] if d else 0.0} for d in (True, False)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], betas=(c["beta1"], c["beta2"]), eps=c["eps"])
    for i, (lr, loss_ours, norm_ours) in enumerate(steps):
        logits = forward(p, tokens[i, :, 0], c)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens[i, :, 1].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if i == 0:
            compare("gradient", params, grad, {n: t.grad for n, t in p.items()})
        norm = torch.cat([t.grad.flatten() for t in p.values()]).norm()
        near(f"loss of step {i + 1}", loss_ours, loss.item(), 1e-11 * loss.item())
        near(f"norm of step {i + 1}", norm_ours, norm.item(), 1e-10 * norm.item())
        for t in p.values():
            t.grad *= min(1.0, c["clip"] / norm.item())
        for g in optimizer.param_groups:
            g["lr"] = lr
        optimizer.step()
    compare("parameter", params, last, {n: t.detach() for n, t in p.items()})
    print(f"{arch}: losses, gradients and parameters of {len(steps)} steps agree with torch {torch.__version__}")


check("llama", llama, sys.argv[1])
check("gpt2", gpt2, sys.argv[1])
