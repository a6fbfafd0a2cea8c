"""The part of interop_hf.py that runs in the Python with transformers, for models with experts. Tiny random models of each
family are imported into dtd in both forms of their tensors. Logits are compared with transformers in float32 and with a
reference in float64, gradients of a step with both; exports must hold the same bits.

The reference is a whole model in plain torch: transformers computes softmax, norms and rotary positions in float32 even in
a float64 model."""
import fractions
import json
import math
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from hf_tools import dtctl, fail, refused, tool

DTCTL, LOGITS, GRADIENTS = sys.argv[1:]
transformers.utils.logging.disable_progress_bar()


def logits(step, lines, *args):
    return [torch.tensor([float(x) for x in line.split()], dtype=torch.float64)
            for line in tool(LOGITS, [step] + list(args), lines)]


def gradients(step, lines, *sets):
    """The loss, and gradients by name in dtd."""
    out = tool(GRADIENTS, [step] + list(sets), lines)
    ret = {}
    for line in out[1:]:
        name, shape, values = line.split(" ", 2)
        ret[name] = torch.tensor([float(x) for x in values.split()], dtype=torch.float64).view(
            [int(n) for n in shape.split("x")])
    return float(out[0].split()[1]), ret


# ---- the reference ----


def rms(x, w, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * w


def rotate(x, theta):
    """[.., heads, tokens, head_dim]; the first half of a head turns against the second."""
    half = x.shape[-1] // 2
    turn = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] / theta ** (
        torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * turn.cos() - b * turn.sin(), b * turn.cos() + a * turn.sin()], -1)


class Reference:
    def __init__(self, config, tensors):
        self.c = config
        self.p = {k: v.double().requires_grad_() for k, v in tensors.items()}
        self.gap = math.inf  # smallest difference of logits between the last chosen expert and the next one
        self.routers = []    # logits and choices of each layer of the last forward
        self.capacity, self.drop = "0", "position"
        self.dropped = 0

    def linear(self, x, name):
        return F.linear(x, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def attention(self, x, at):
        c, (n, t, _) = self.c, x.shape
        hd = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        out = []
        for part, heads in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)):
            y = self.linear(x, at + part + "_proj")
            w = self.p.get(at + part + "_norm.weight")
            if w is not None and w.numel() != hd:
                y = rms(y, w, c.rms_norm_eps)
            y = y.view(n, t, heads, hd)
            if w is not None and w.numel() == hd:
                y = rms(y, w, c.rms_norm_eps)
            y = y.transpose(1, 2)
            out.append(rotate(y, c.rope_parameters["rope_theta"]) if part != "v" else y)
        q, k, v = out
        k, v = (z.repeat_interleave(q.shape[1] // k.shape[1], 1) for z in (k, v))
        s = (q @ k.transpose(2, 3) / math.sqrt(hd)).masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
        return self.linear((s.softmax(-1) @ v).transpose(1, 2).reshape(n, t, -1), at + "o_proj")

    def dense(self, x, at, names=("gate_proj", "up_proj", "down_proj")):
        return self.linear(F.silu(self.linear(x, at + names[0])) * self.linear(x, at + names[1]), at + names[2])

    def mixture(self, x, at, mixtral):
        c, names = self.c, ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        k = c.num_experts_per_tok
        z = self.linear(x, at + "gate")
        order = z.sort(-1, descending=True)
        if k < z.shape[-1]:
            self.gap = min(self.gap, (order.values[..., k - 1] - order.values[..., k]).min().item())
        ids = order.indices[..., :k]
        self.routers.append((z, ids))
        w = z.softmax(-1).gather(-1, ids)
        if mixtral or c.norm_topk_prob:
            w = w / w.sum(-1, keepdim=True)
        kept = self.kept(ids, w, z.shape[-1])
        y = torch.zeros_like(x)
        for e in range(z.shape[-1]):
            mine = (w * (ids == e) * kept).sum(-1, keepdim=True)
            y = y + mine * self.dense(x, at + "experts.%d." % e, names)
        if at + "shared_expert_gate.weight" in self.p:
            y = y + torch.sigmoid(self.linear(x, at + "shared_expert_gate")) * self.dense(x, at + "shared_expert.")
        return y

    def kept(self, ids, w, experts):
        """Which choices [samples, tokens, k] are computed: of each sample an expert keeps the first ones, or the largest."""
        ret = torch.ones_like(ids, dtype=torch.bool)
        factor, (samples, tokens, k) = fractions.Fraction(self.capacity), ids.shape
        if factor == 0:
            return ret
        most = math.ceil(factor * tokens * k / experts)
        for s in range(samples):
            for e in range(experts):
                choices = [(t, j) for t in range(tokens) for j in range(k) if ids[s, t, j] == e]
                if self.drop == "probability":
                    choices.sort(key=lambda c: -w[s][c].item())  # a stable sort: of equal ones the first token
                for c in choices[most:]:
                    ret[s][c] = False
        self.dropped += ids.numel() - ret.sum().item()
        return ret

    def __call__(self, ids):
        c, self.routers = self.c, []
        x = self.p["model.embed_tokens.weight"][ids]
        for i in range(c.num_hidden_layers):
            at = "model.layers.%d." % i
            x = x + self.attention(rms(x, self.p[at + "input_layernorm.weight"], c.rms_norm_eps), at + "self_attn.")
            y = rms(x, self.p[at + "post_attention_layernorm.weight"], c.rms_norm_eps)
            if at + "block_sparse_moe.gate.weight" in self.p:
                x = x + self.mixture(y, at + "block_sparse_moe.", True)
            elif at + "mlp.gate.weight" in self.p:
                x = x + self.mixture(y, at + "mlp.", False)
            else:
                x = x + self.dense(y, at + "mlp.")
        head = self.p.get("lm_head.weight", self.p["model.embed_tokens.weight"])
        return F.linear(rms(x, self.p["model.norm.weight"], c.rms_norm_eps), head)

    def loss(self, batch, aux=0, z_loss=0):
        """Mean over all tokens; auxiliary loss of each sample, as docs/use/job-file.md and kernels/kernels.h define them."""
        out = self(batch[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
        tokens, k = batch[:, 1:].numel(), self.c.num_experts_per_tok
        for z, ids in self.routers:
            n_experts, p = z.shape[-1], z.softmax(-1)
            for s in range(len(batch)):
                n = torch.bincount(ids[s].flatten(), minlength=n_experts).double()
                loss = loss + aux * n_experts / (k * p.shape[1]) * (n * p[s].sum(0)).sum() / tokens
            loss = loss + z_loss * z.logsumexp(-1).pow(2).sum() / tokens
        return loss


# ---- dtd's names ----

LAYER = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
         "attention.wo": "self_attn.o_proj", "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
         "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
         "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "moe.shared_experts.w1": "mlp.shared_expert.gate_proj", "moe.shared_experts.w2": "mlp.shared_expert.down_proj",
         "moe.shared_experts.w3": "mlp.shared_expert.up_proj", "moe.shared_gate": "mlp.shared_expert_gate"}
REST = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}


def of_names(ours, theirs):
    """Tensors by dtd's names -> by Hugging Face's, in its order of rows. `theirs`: which names there are."""
    mixtral, ret = any("block_sparse_moe" in k for k in theirs), {}
    for name, value in ours.items():
        if not name.startswith("layers."):
            base, leaf = name.rsplit(".", 1)
            ret[REST[base] + "." + leaf] = value
            continue
        _, layer, rest = name.split(".", 2)
        at = "model.layers.%s." % layer
        if rest.startswith("moe.experts."):
            w = rest[-2:] if mixtral else {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}[rest[-2:]]
            for e in range(len(value)):
                ret["%s%s.experts.%d.%s.weight" % (at, "block_sparse_moe" if mixtral else "mlp", e, w)] = value[e]
            continue
        base, leaf = rest.rsplit(".", 1)
        if base == "moe.router.gate":
            ret[at + ("block_sparse_moe" if mixtral else "mlp") + ".gate." + leaf] = value
        else:
            ret[at + LAYER[base] + "." + leaf] = value
    return ret


def turned(tensors, config):
    """Rows of q and k: pairs that are neighbours in dtd are half a head apart in Hugging Face's files."""
    hd = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ret = {}
    for name, v in tensors.items():
        if ".q_proj." in name or ".k_proj." in name or (".q_norm." in name or ".k_norm." in name):
            v = v.view(-1, hd // 2, 2, *v.shape[1:]).transpose(1, 2).reshape(v.shape)
        ret[name] = v
    return ret


# ---- models ----


def shaken(model):
    """Standard deviation 1 / sqrt(inputs) for matrices; norms around 1, biases around 0."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 1 if "embed" in name else 1 / math.sqrt(p.shape[-1]))
            else:
                p.normal_(0, 0.1).add_(0 if name.endswith("bias") else 1)
    return model.eval()


def opened(folder):
    return AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager").eval()


def made(type_name, **kw):
    base = dict(vocab_size=256, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    config = AutoConfig.for_model(type_name, **{**base, **kw})
    return shaken(AutoModelForCausalLM.from_config(config, experts_implementation="eager"))


MODELS = {
    "mixtral": lambda: made("mixtral", intermediate_size=37, num_local_experts=5, num_experts_per_tok=3),
    "mixtral, tied": lambda: made("mixtral", intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
                                  tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 2e4}),
    "qwen2_moe": lambda: made("qwen2_moe", moe_intermediate_size=19, shared_expert_intermediate_size=38, num_experts=6,
                              num_experts_per_tok=3, intermediate_size=29, decoder_sparse_step=2, num_hidden_layers=4,
                              rms_norm_eps=1e-6),
    "qwen2_moe, renormalised, without biases": lambda: made(
        "qwen2_moe", moe_intermediate_size=20, shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=2,
        intermediate_size=29, norm_topk_prob=True, qkv_bias=False),
    "qwen3_moe": lambda: made("qwen3_moe", moe_intermediate_size=23, num_experts=7, num_experts_per_tok=3, head_dim=18,
                              intermediate_size=29, norm_topk_prob=True, mlp_only_layers=[0], num_hidden_layers=4),
    "qwen3_moe, raw weights": lambda: made("qwen3_moe", moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
                                           intermediate_size=29),
    "olmoe": lambda: made("olmoe", intermediate_size=21, num_experts=9, num_experts_per_tok=4),
    "olmoe, renormalised": lambda: made("olmoe", intermediate_size=16, num_experts=4, num_experts_per_tok=2,
                                        num_key_value_heads=4, norm_topk_prob=True),
    "olmoe, one expert, the rule of Switch": lambda: made("olmoe", intermediate_size=16, num_experts=4, num_experts_per_tok=1),
}


# ---- checks ----


def same_tensors(what, a, b):
    if sorted(a) != sorted(b):
        fail("%s: other tensors: %s" % (what, sorted(set(a) ^ set(b))[:4]))
    for key in a:
        if a[key].dtype != b[key].dtype or not torch.equal(a[key], b[key]):
            fail("%s: %s differs" % (what, key))
    print("%s: %d tensors, the same bit for bit" % (what, len(a)))


def same(what, bound, ours, theirs):
    """By name: the largest difference relative to the largest value."""
    worst, where = 0, ""
    if sorted(ours) != sorted(theirs):
        fail("%s: other names: %s" % (what, sorted(set(ours) ^ set(theirs))[:4]))
    for name, a in ours.items():
        b = theirs[name].double()
        d = ((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
        if not d <= worst:
            worst, where = d, name
    if not worst < bound:
        fail("%s: %s differs by %g of the largest, not %g" % (what, where, worst, bound))
    print("%s: within %.1e of the largest" % (what, worst))


def lines_of(*lengths):
    rng = random.Random(3)
    return [[rng.randrange(256) for _ in range(n)] for n in lengths]


def check_logits(name, model, reference, step):
    lines = lines_of(1, 2, 3, 7, 16, 31, 48)
    with torch.no_grad():
        theirs = {n: model(torch.tensor([ids])).logits[0, -1] for n, ids in enumerate(lines)}
        wide = {n: reference(torch.tensor([ids]))[0, -1] for n, ids in enumerate(lines)}
    if reference.gap < 1e-5:
        fail("%s: two experts of a token are only %g apart: choose another seed" % (name, reference.gap))
    same(name + ", logits in float32", 2e-5, dict(enumerate(logits(step, lines))), theirs)
    same(name + ", logits in float64", 1e-10, dict(enumerate(logits(step, lines, "float64"))), wide)


def check_gradients(name, model, reference, step):
    lines = lines_of(20, 20, 20)
    batch, config, names = torch.tensor(lines), model.config, list(reference.p)
    model.zero_grad()
    out = model(batch[:, :-1]).logits
    F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten()).backward()
    with tempfile.TemporaryDirectory() as folder:
        # save_pretrained gives the gradients the names of the parameters in a file
        state = {k: p.grad for k, p in model.named_parameters()}
        model.save_pretrained(folder, state_dict=state)
        theirs = load_file(folder + "/model.safetensors")
    loss, ours = gradients(step, lines)
    same(name + ", gradients in float32", 1e-4, turned(of_names(ours, names), config), theirs)
    for what, aux, z_loss, scope in (("", 0, 0, "sample"), (", auxiliary and z loss", 0.3, 0.05, "sample"),
                                     (", microbatches", 0.3, 0, "micro_batch")):
        reference.zero_grad()
        want = reference.loss(batch, aux, z_loss)
        want.backward()
        loss, ours = gradients(step, lines, "train.numerics=proof", "train.dtype=float64", "model.aux_loss=%g" % aux,
                               "model.z_loss=%g" % z_loss, "model.aux_scope=" + scope)
        same(name + ", gradients in float64" + what, 1e-9, turned(of_names(ours, names), config),
             {k: p.grad for k, p in reference.p.items()})
    for factor, drop, micro in ("0.5", "position", 1), ("1.1", "position", 3), ("0.7", "probability", 3):
        reference.capacity, reference.drop, reference.dropped = factor, drop, 0
        reference.zero_grad()
        reference.loss(batch, 0.3, 0.05).backward()
        if not reference.dropped:
            fail("%s: no choice is dropped with a capacity of %s" % (name, factor))
        loss, ours = gradients(step, lines, "train.numerics=proof", "train.dtype=float64", "model.aux_loss=0.3",
                               "model.z_loss=0.05", "model.expert_capacity=" + factor, "model.expert_drop=" + drop,
                               "train.micro_batch=%d" % micro)
        same("%s, %d of %d choices dropped by %s" % (name, reference.dropped, sum(i.numel() for _, i in reference.routers), drop),
             1e-9, turned(of_names(ours, names), config), {k: p.grad for k, p in reference.p.items()})
    reference.capacity = "0"


def check(name, model, folder):
    theirs, fused, back = folder + "/theirs", folder + "/fused", folder + "/back"
    model.save_pretrained(theirs)
    model.save_pretrained(fused, save_original_format=False)
    tensors = load_file(theirs + "/model.safetensors")
    reference = Reference(model.config, tensors)
    reference.zero_grad = lambda: [setattr(p, "grad", None) for p in reference.p.values()]
    done = json.loads(dtctl("ckpt", "import", theirs, folder + "/ours", "-o", "json"))
    if len(done["warnings"]) != 1 or "router_aux_loss_coef" not in done["warnings"][0]:
        fail("%s: warnings: %s" % (name, done["warnings"]))
    check_logits(name, model, reference, done["path"])
    check_gradients(name, model, reference, done["path"])
    dtctl("ckpt", "export", folder + "/ours", back)
    same_tensors(name, tensors, load_file(back + "/model.safetensors"))
    again = opened(back)
    same_tensors(name + ", as transformers reads our export", dict(model.state_dict()), dict(again.state_dict()))
    a, b = ({**AutoConfig.from_pretrained(x).to_dict(), "_name_or_path": ""} for x in (theirs, back))
    if a != b:
        fail("%s: config.json: %s" % (name, {k: (a.get(k), b.get(k)) for k in {*a, *b} if a.get(k) != b.get(k)}))
    if any(k.endswith("gate_up_proj") for k in tensors) or not any("gate_up_proj" in k for k in load_file(fused + "/model.safetensors")):
        fail("%s: save_pretrained no longer writes these two forms" % name)
    dtctl("ckpt", "import", fused, folder + "/of-fused")
    dtctl("ckpt", "export", folder + "/of-fused", folder + "/back-of-fused", "--shard-bytes", "40000")
    parts = {}
    for file in os.listdir(folder + "/back-of-fused"):
        parts.update(load_file(folder + "/back-of-fused/" + file) if file.endswith(".safetensors") else {})
    same_tensors(name + ", of all experts in one tensor, into several files", tensors, parts)
    check_made_config(name, model, folder, tensors)


NEEDED = {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "num_local_experts", "num_experts",
          "num_experts_per_tok", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "rope_parameters",
          "rms_norm_eps", "tie_word_embeddings", "head_dim", "qkv_bias", "max_position_embeddings"}


def check_made_config(name, model, folder, tensors):
    """From a config.json with what dtd needs and nothing else, the export writes one that describes the same model."""
    config, bare = json.load(open(folder + "/theirs/config.json")), folder + "/bare"
    os.makedirs(bare)
    json.dump({k: v for k, v in config.items() if k in NEEDED}, open(bare + "/config.json", "w"))
    save_file(tensors, bare + "/model.safetensors", metadata={"format": "pt"})
    dtctl("ckpt", "import", bare, folder + "/bare-in")
    dtctl("ckpt", "export", folder + "/bare-in", folder + "/bare-out")
    written = json.load(open(folder + "/bare-out/config.json"))
    written.setdefault("num_local_experts", written.get("num_experts"))  # one number, two names
    lost = [k for k in config if k not in written and k not in (
        "dtype", "transformers_version", "initializer_range", "use_cache", "pad_token_id", "max_window_layers", "layer_types")]
    if lost:
        fail("%s: config.json lacks %s" % (name, lost))
    again, ids = opened(folder + "/bare-out"), torch.tensor(lines_of(30))
    with torch.no_grad():
        same(name + ", with a config.json of dtd", 1e-6, {0: again(ids).logits}, {0: model(ids).logits})


def check_config_refusals(folder):
    """Fields that transformers would compute with."""
    for type_name, field, value, part in (
            ("mixtral", "router_jitter_noise", 0.01, "set it to 0"),
            ("qwen2_moe", "use_sliding_window", True, "use_sliding_window is set"),
            ("qwen2_moe", "shared_expert_intermediate_size", 17, "is not a multiple of moe_intermediate_size 16"),
            ("qwen3_moe", "mlp_only_layers", [2], "only the first layers can be without"),
            ("qwen3_moe", "mlp_only_layers", [0, 1, 2], "leave no layer that has experts"),
            ("qwen3_moe", "attention_bias", True, "attention_bias is set"),
            ("qwen3_moe", "rope_parameters", {"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4}, "need the field short_factor"),
            ("olmoe", "clip_qkv", 0.5, "clip_qkv is set"), ("olmoe", "norm_topk_prob", 1, "is not true or false"),
            ("olmoe", "num_experts", None, "num_experts is missing")):
        config = AutoConfig.for_model(type_name, vocab_size=256, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, intermediate_size=16, moe_intermediate_size=16,
                                      shared_expert_intermediate_size=32).to_dict()
        config.pop("num_local_experts" if "num_local_experts" in config and type_name != "mixtral" else "", None)
        config.update({"model_type": type_name, "num_experts_per_tok": 2, "dtype": "float32"})
        config["num_local_experts" if type_name == "mixtral" else "num_experts"] = 4
        config[field] = value
        json.dump(config, open(folder + "/config.json", "w"))
        refused("%s with %s %s" % (type_name, field, value), part, "ckpt", "import", folder, folder + "/x")


def check_refusals(folder):
    model = MODELS["mixtral"]()
    model.save_pretrained(folder + "/fused", save_original_format=False)
    path = folder + "/fused/model.safetensors"
    tensors = load_file(path)
    turned_over = {k: v.transpose(1, 2).contiguous() if "mlp.experts" in k else v for k, v in tensors.items()}
    save_file(turned_over, path, metadata={"format": "pt"})
    refused("transposed experts", "the experts' matrices are transposed", "ckpt", "import", folder + "/fused", folder + "/x")
    made("mixtral", intermediate_size=24, num_local_experts=3).save_pretrained(folder + "/square", save_original_format=False)
    refused("experts of an ambiguous shape", "cannot decide whether the experts' matrices are transposed", "ckpt", "import",
            folder + "/square", folder + "/x")
    both = {**tensors, "model.layers.0.block_sparse_moe.gate.weight": tensors["model.layers.0.mlp.gate.weight"].clone()}
    save_file(both, path, metadata={"format": "pt"})
    refused("a router under two names", "does not belong to the model", "ckpt", "import", folder + "/fused", folder + "/x")


def check_upcycling(folder):
    """A dense llama with experts that are copies of its feed-forward computes the same function."""
    dense = made("llama", intermediate_size=37)
    dense.save_pretrained(folder + "/dense")
    before = json.loads(dtctl("ckpt", "import", folder + "/dense", folder + "/in", "-o", "json"))["path"]
    lines = lines_of(1, 5, 33, 48)
    want = {bits: dict(enumerate(logits(before, lines, *bits))) for bits in ((), ("float64",))}
    for name, args in (("every layer", []), ("the second layer", ["--set", "model.moe_every=2"]),
                       ("sigmoid", ["--set", "model.router=sigmoid", "--set", "model.router_norm=true"])):
        to = folder + "/up " + name
        done = json.loads(dtctl("ckpt", "upcycle", folder + "/in", to, "--experts", "5", "--experts-per-token", "3", "-o",
                                "json", *args))
        if not done["same_function"] or done["experts"] != 5 or done["layers"] != (1 if "second" in name else 3):
            fail("upcycling, %s: %s" % (name, done))
        for bits, bound in (((), 2e-6), (("float64",), 1e-14)):
            same("upcycling, %s %s" % (name, bits), bound, dict(enumerate(logits(done["path"], lines, *bits))), want[bits])
    dtctl("ckpt", "export", folder + "/up every layer", folder + "/out")
    old, new = load_file(folder + "/dense/model.safetensors"), load_file(folder + "/out/model.safetensors")
    for key, value in new.items():
        for theirs, ours in (("block_sparse_moe.experts.%s.w1", "mlp.gate_proj"), ("block_sparse_moe.experts.%s.w2", "mlp.down_proj"),
                             ("block_sparse_moe.experts.%s.w3", "mlp.up_proj")):
            for e in range(5):
                key = key.replace(theirs % e, ours)
        if ".gate.weight" in key:
            if not 0 < value.std() < 0.1 or value.unique().numel() < value.numel() - 2:
                fail("the router %s is not random: %s" % (key, value))
        elif not torch.equal(value, old[key]):
            fail("upcycling: %s differs" % key)
    opened(folder + "/out")
    up = ["ckpt", "upcycle", folder + "/in", folder + "/x", "--experts", "5"]
    refused("upcycling of experts", "has experts already", "ckpt", "upcycle", folder + "/up every layer", folder + "/x")
    refused("upcycling without a number", "model.experts is 0", *up[:4])
    refused("upcycling with shared experts", "model.shared_experts: shared experts would add", *up, "--set", "model.shared_experts=1")
    refused("upcycling to narrow experts", "Set model.expert_ffn to 0", *up, "--set", "model.expert_ffn=8")
    refused("upcycling to another model", "model.rope_theta", *up, "--set", "model.rope_theta=7")
    refused("upcycling over another checkpoint", "holds checkpoints", *up[:3], folder + "/in", "--experts", "5")
    for i, key in enumerate(("model.router=softmax", "model.router_scale=2")):
        done = subprocess.run([DTCTL] + up[:3] + ["%s/x%d" % (folder, i)] + up[4:] + ["--set", key], capture_output=True,
                              text=True)
        if done.returncode or "do not have the sum 1" not in done.stderr:
            fail("upcycling with %s: %s" % (key, done.stderr))


def main():
    for name, model in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            check(name, model(), folder)
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(folder)
        check_config_refusals(folder)
    with tempfile.TemporaryDirectory() as folder:
        check_upcycling(folder)


main()
