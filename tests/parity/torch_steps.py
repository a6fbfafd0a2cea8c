"""Compares the output of parity_dump with PyTorch's autograd and torch.optim.AdamW on the small models, in float64.

From the same weights, on one worker and on two along every axis, it compares logits, loss and every gradient, and then
three clipped steps of AdamW. It also trains with the course's settings for twenty steps on lower-case words and compares
the losses. The models are written from their formulas here, independently of the C code. The relatives of llama are also
compared with those of transformers, where python has them: it computes norms and rotations in float32, so within that.

torch_steps.py PARITY_DUMP TEXT   (run by ctest; needs a python with torch in DTD_TORCH_PYTHON)
"""
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

python = os.environ.get("DTD_TORCH_PYTHON")
if not python:
    print("skipped: DTD_TORCH_PYTHON does not name a Python with torch")
    sys.exit(77)
if "DTD_TORCH_STEPS" not in os.environ:
    if subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        print(f"skipped: {python} has no torch")
        sys.exit(77)
    sys.exit(subprocess.run([python] + sys.argv, env={**os.environ, "DTD_TORCH_STEPS": "1"}).returncode)

import torch
import torch.nn.functional as F

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
os.environ["HF_HUB_OFFLINE"] = "1"

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


def attention(q, k, v, heads, kv_heads, causal=True, window=0, softcap=0.0, scale=0.0):
    """A window has so many keys, with the query's own; scores are capped before the mask (Gemma 2)."""
    b, s, _ = q.shape
    q, k, v = (x.view(b, s, n, -1).transpose(1, 2) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), float("-inf"))
    if window:
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).tril(-window), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, -1)


def rope(x, heads, theta):
    b, s, d = x.shape
    hd = d // heads
    freqs = theta ** (-torch.arange(0, hd, 2, dtype=F64) / hd)
    turn = torch.polar(torch.ones(s, hd // 2, dtype=F64), torch.outer(torch.arange(s, dtype=F64), freqs))
    pairs = torch.view_as_complex(x.view(b, s, heads, hd // 2, 2).contiguous())
    return torch.view_as_real(pairs * turn[:, None]).reshape(b, s, d)


def qk_norm(x, w, norm):
    """Over all columns, or over those of each head: as many as the weight has."""
    return norm(x.unflatten(-1, (-1, w.numel())), w).flatten(-2)


def llama(p, ids, c):
    heads, kv = int(c["heads"]), int(c["kv_heads"])

    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["norm_eps"]) * w

    x = p["tok_embeddings.weight"][ids]
    for i in range(int(c["layers"])):
        w = {k[len(f"layers.{i}."):]: v for k, v in p.items() if k.startswith(f"layers.{i}.")}
        h = norm(x, w["attention_norm.weight"])
        q, k, v = (h @ w[f"attention.{n}.weight"].T + w.get(f"attention.{n}.bias", 0) for n in ("wq", "wk", "wv"))
        if "attention.q_norm.weight" in w:
            q, k = (qk_norm(x, w[f"attention.{n}_norm.weight"], norm) for x, n in ((q, "q"), (k, "k")))
        whole = i < c["window_from"] or (c["window_period"] and (i + 1) % c["window_period"] == 0)
        o = attention(rope(q, heads, c["rope_theta"]), rope(k, kv, c["rope_theta"]), v, heads, kv,
                      window=0 if whole else int(c["window"]), softcap=c["softcap"], scale=c["scale"])
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


def sinusoids(seq, d):
    angle = torch.arange(seq, dtype=F64)[:, None] * 10000.0 ** (-torch.arange(0, d, 2, dtype=F64) / d)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(seq, d)


def transformer(p, ids, c):
    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], c["norm_eps"])

    def affine(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    heads = int(c["heads"])
    x = p["embed.weight"][ids]
    x = x + sinusoids(*x.shape[1:])
    for i in range(int(c["layers"])):
        w = f"layers.{i}."
        q, k, v = (affine(x, w + "self_attn.linear_" + n) for n in "QKV")
        o = attention(q, k, v, heads, heads, causal=c["causal"] > 0)
        x = norm(x + affine(o, w + "self_attn.linear_O"), w + "norm1")
        x = norm(x + affine(F.relu(affine(x, w + "linear1")), w + "linear2"), w + "norm2")
    return affine(norm(x, "norm"), "fc")


def near(what, ours, theirs, tolerance):
    difference = abs(ours - theirs)
    if not difference <= tolerance:
        sys.exit(f"{what}: {ours!r} and torch's {theirs!r} differ by {difference:g}, allowed {tolerance:g}")


def near_all(what, ours, theirs, bound):
    worst = (ours - theirs).abs().max().item()  # a NaN, which means that no rank wrote the value, stays one
    near(f"largest difference of {what}", worst, 0.0, bound * theirs.abs().max().item())


def near_params(what, params, ours, theirs, bound):
    """The bound is relative to the largest element of each tensor. For single elements no bound holds: a gradient may be
    zero up to rounding."""
    rms = (sum(t.pow(2).sum() for t in theirs.values()) / sum(t.numel() for t in theirs.values())).sqrt().item()
    for fqn, _, zero_lo, zero_hi, _ in params:
        a, b = ours[fqn].flatten(), theirs[fqn].flatten()
        keep = torch.ones_like(a, dtype=torch.bool)
        keep[zero_lo:zero_hi] = False
        if keep.any():
            near(f"{what} of {fqn}", (a - b)[keep].abs().max().item(), 0.0, bound * max(b.abs().max().item(), 1e-3 * rms))


def same_with(forward, c, params, steps, files, tokens, bounds):
    init, grad, last, logits_ours, generated = files
    p = {n: t.requires_grad_() for n, t in init.items()}
    groups = [{"params": [p[x[0]] for x in params if x[1] == d], "weight_decay": c["weight_decay"] if d else 0.0} for d in (True, False)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], betas=(c["beta1"], c["beta2"]), eps=c["eps"])
    for i, (lr, loss_ours, norm_ours) in enumerate(steps):
        logits = forward(p, tokens[i, :, 0], c)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens[i, :, 1].reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        if i == 0:
            near_all("logits", logits_ours.view_as(logits), logits.detach(), bounds["logits"])
            near_all("a generator's logits", generated, logits[0, -1].detach(), bounds["logits"])
            near_params("gradient", params, grad, {n: t.grad for n, t in p.items()}, bounds["gradient"])
        norm = torch.cat([t.grad.flatten() for t in p.values()]).norm()
        near(f"loss of step {i + 1}", loss_ours, loss.item(), bounds["loss"] * loss.item())
        near(f"norm of step {i + 1}", norm_ours, norm.item(), bounds["norm"] * norm.item())
        for t in p.values():
            t.grad *= min(1.0, c["clip"] / norm.item()) if c["clip"] else 1.0
        for g in optimizer.param_groups:
            g["lr"] = lr
        optimizer.step()
    near_params("parameter", params, last, {n: t.detach() for n, t in p.items()}, bounds["parameter"])


# ---- transformers ----


def rows_theirs(fqn, t, c):
    """transformers rotates the first half of a head against the second, we neighbouring rows."""
    name = fqn.split(".")[-2]
    if name not in ("wq", "wk", "q_norm", "k_norm"):
        return t
    return t.unflatten(0, (-1, int(c["head_dim"]) // 2, 2)).transpose(1, 2).flatten(0, 2)


def name_theirs(fqn):
    names = {"tok_embeddings": "model.embed_tokens", "output": "lm_head", "norm": "model.norm", "layers": "model.layers",
             "attention": "self_attn", "wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj", "feed_forward": "mlp",
             "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    return ".".join(names.get(part, part) for part in fqn.split("."))


def model_theirs(family, c, ffn):
    """Qwen2, Qwen3 and Mistral; llama with the attention of OLMoE, whose other layers are experts."""
    import transformers as hf
    from transformers.models.olmoe.modeling_olmoe import OlmoeAttention
    keys = dict(vocab_size=int(c["vocab"]), hidden_size=int(c["dim"]), intermediate_size=ffn, num_hidden_layers=int(c["layers"]),
                num_attention_heads=int(c["heads"]), num_key_value_heads=int(c["kv_heads"]), rms_norm_eps=c["norm_eps"],
                tie_word_embeddings=False, attn_implementation="eager",
                rope_parameters={"rope_type": "default", "rope_theta": c["rope_theta"]})
    if family == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**keys))
    if family == "mistral":
        return hf.MistralForCausalLM(hf.MistralConfig(sliding_window=int(c["window"]), **keys))
    if family == "qwen2, window":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(use_sliding_window=True, sliding_window=int(c["window"]),
                                                  max_window_layers=int(c["window_from"]), **keys))
    if family == "qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(head_dim=int(c["head_dim"]), **keys))
    model, config = hf.LlamaForCausalLM(hf.LlamaConfig(**keys)), hf.OlmoeConfig(**keys)
    for i, layer in enumerate(model.model.layers):
        layer.self_attn = OlmoeAttention(config, i)
    return model


def same_with_transformers(family, c, params, files, tokens):
    init, grad, _, logits, _ = files
    model = model_theirs(family, c, init["layers.0.feed_forward.w1.weight"].shape[0]).double()
    theirs = {name_theirs(fqn): rows_theirs(fqn, t.detach(), c) for fqn, t in init.items()}
    model.load_state_dict(theirs)
    out = model(tokens[0, :, 0], use_cache=False).logits
    F.cross_entropy(out.flatten(0, 1), tokens[0, :, 1].reshape(-1)).backward()
    near_all(f"logits and those of {family}", logits.view_as(out), out.detach(), TRANSFORMERS["logits"])
    of = {n: p.grad for n, p in model.named_parameters()}
    near_params(f"gradient and that of {family}", params, {fqn: rows_theirs(fqn, t, c) for fqn, t in grad.items()},
                {fqn: of[name_theirs(fqn)] for fqn in init}, TRANSFORMERS["gradient"])
    print(f"{family} of transformers: logits and gradients agree", flush=True)


TRANSFORMERS = {"logits": 2e-5, "gradient": 1e-4}
FORMULAS = {"logits": 1e-10, "gradient": 1e-10, "loss": 1e-11, "norm": 1e-10, "parameter": 1e-10}
RECIPE = {"logits": 1e-9, "gradient": 1e-9, "loss": 1e-6, "norm": 1e-6, "parameter": 1e-6}
MODELS = {"llama": llama, "gpt2": gpt2, "transformer": transformer}
# llama with other attention: the keys, and the model of transformers with the same
RELATIVES = {
    "qwen2": (["model.qkv_bias=true"], True),
    "qwen3": (["model.head_dim=12", "model.qk_norm=head"], True),
    "olmoe": (["model.qk_norm=whole"], True),
    "mistral": (["model.window=5"], True),
    "qwen2, window": (["model.qkv_bias=true", "model.window=4", "model.window_from=1"], True),
    "scores of Gemma 2": (["model.window=6", "model.window_period=2", "model.score_softcap=0.7", "model.score_scale=0.4"], False),
    "all": (["model.head_dim=6", "model.qkv_bias=true", "model.qk_norm=head"], False),
}
LAYOUTS = {
    "one worker": [],
    "tp 2": ["parallel.workers=2", "parallel.tp=2", "parallel.sp=true"],
    "fsdp 2, ZeRO 3": ["parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3"],
    "pp 2": ["parallel.workers=2", "parallel.pp=2"],
    "cp 2": ["parallel.workers=2", "parallel.cp=2"],
}
# Two workers have the same key-value head.
WIDE = {"tp 4": ["parallel.workers=4", "parallel.tp=4"]}
# The course's settings: words, 32 tokens, AdamW with a learning rate of 2e-3 and torch.optim's defaults, no schedule.
# The net is narrower.
COURSE = ["train.seq=32", "train.global_batch=8", "train.lr=2.0e-3", "train.schedule=constant", "train.warmup=0", "train.decay=0",
          "train.clip=0", "train.weight_decay=0.01", "train.beta1=0.9", "train.beta2=0.999", "train.eps=1.0e-8"]


def check(program, arch, layout, steps, text, sets, bounds, family=None):
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, arch, folder, str(steps), text, *sets, *(LAYOUTS | WIDE)[layout]], check=True)
        c, rows, params = read_index(folder)
        files = [read_tensors(folder, n, params) for n in ("init", "grad", "param")]
        files += [torch.frombuffer(bytearray(open(f"{folder}/{n}", "rb").read()), dtype=F64) for n in ("logits", "generated")]
        tokens = torch.frombuffer(bytearray(open(f"{folder}/tokens", "rb").read()), dtype=torch.int32).long()
    tokens = tokens.view(steps, int(c["batch"]), 2, int(c["seq"]))
    try:
        if family in RELATIVES and RELATIVES[family][1] and HAS_TRANSFORMERS:
            same_with_transformers(family, c, params, files, tokens)
        same_with(MODELS[arch], c, params, rows, files, tokens, bounds)
    except SystemExit as e:
        sys.exit(f"{family or arch}, {layout}: {e}")
    print(f"{family or arch}, {layout}: logits, gradients and {steps} steps on {int(c['vocab'])} words agree with torch {torch.__version__}, "
          f"loss {rows[0][1]:.3f} to {rows[-1][1]:.3f}, {time.monotonic() - begin:.1f} s", flush=True)


def main(program, text):
    for arch in MODELS:
        plain = ["train.dropout=0", "model.ffn=0"] if arch == "transformer" else []
        for layout in LAYOUTS:
            check(program, arch, layout, 3, "-", plain, FORMULAS)
            check(program, arch, layout, 3, "masked", plain, FORMULAS)
        for layout in LAYOUTS:
            check(program, arch, layout, 20, text, COURSE + plain, RECIPE)
    for family, (keys, _) in RELATIVES.items():
        for layout in [*LAYOUTS, "tp 4"] if family == "olmoe" else LAYOUTS:
            check(program, "llama", layout, 3, "-", keys, FORMULAS, family)
    check(program, "transformer", "cp 2", 3, "-", ["train.dropout=0", "model.causal=true"], FORMULAS)


main(*sys.argv[1:])
