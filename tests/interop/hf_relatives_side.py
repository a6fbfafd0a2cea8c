"""The part of interop_hf.py that runs in the Python with transformers, for the relatives of llama. Tiny random models of
each family are imported; logits, gradients, exports and the reading of config.json are compared with transformers.

Weights have the standard deviation 1 / sqrt(inputs): with those of transformers' own initialisation a wrong activation or a
forgotten soft-cap would not show. The reference is the eager attention, in float32."""
import json
import math
import os
import random
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from hf_tools import dtctl, fail, refused, tool

LOGITS, GRADIENTS = sys.argv[2:4]
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
torch.set_num_threads(1)  # models this small are slower on several


def logits(step, lines):
    return [torch.tensor([float(x) for x in line.split()]) for line in tool(LOGITS, [step], lines)]


def gradients(step, lines):
    ret = {}
    for line in tool(GRADIENTS, [step], lines)[1:]:
        name, shape, values = line.split(" ", 2)
        ret[name] = torch.tensor([float(x) for x in values.split()], dtype=torch.float64).view(
            [int(n) for n in shape.split("x")])
    return ret


def lines_of(*lengths):
    rng = random.Random(3)
    return [[rng.randrange(256) for _ in range(n)] for n in lengths]


def opened(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


# ---- models ----

SHORT, LONG = [1 + i / 20 for i in range(6)], [2 + i for i in range(6)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "rope_theta": 1e4}
GEMMA = dict(head_dim=16, sliding_window=9, query_pre_attn_scalar=40)

MODELS = {
    "smollm3": {},
    "smollm3, other layers": dict(no_rope_layers=[0, 1, 1, 0], attention_bias=True, mlp_bias=True),
    "phi3": {},
    "phi3, window": dict(sliding_window=9),
    "phi3, part of a head": dict(hidden_size=64, partial_rotary_factor=0.75),
    "phi3, long": dict(rope_parameters=LONGROPE, original_max_position_embeddings=16),
    "phi3, short": dict(rope_parameters={**LONGROPE, "factor": 8.0}, original_max_position_embeddings=64),
    "gpt_neox": dict(hidden_size=64),
    "gpt_neox, serial, half": dict(hidden_size=64, use_parallel_residual=False, rotary_pct=0.5, attention_bias=False),
    "phi": dict(),
    "starcoder2": dict(),
    "starcoder2, window": dict(sliding_window=9),
    "starcoder2, without biases": dict(use_bias=False, hidden_act="gelu", tie_word_embeddings=False),
    "olmo2": dict(),
    "gemma": dict(head_dim=16),
    "gemma2": dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **GEMMA),
    "gemma2, no cap, other layers": dict(attn_logit_softcapping=None, final_logit_softcapping=3.0, layer_types=[
        "full_attention", "sliding_attention", "sliding_attention", "full_attention"], **GEMMA),
    "gemma3_text": dict(num_hidden_layers=7, **GEMMA),
    "gemma3_text, stretched": dict(num_hidden_layers=7, rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e3}}, **GEMMA),
    "mistral": dict(sliding_window=9),
    "qwen2, window from layer 2": dict(use_sliding_window=True, sliding_window=9, max_window_layers=2),
    "qwen3, window but every third layer": dict(
        use_sliding_window=True, sliding_window=9, head_dim=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "granite": dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=0.25),
    "llama, biases": dict(attention_bias=True, mlp_bias=True),
    "qwen3, biases": dict(attention_bias=True, head_dim=16),
}

WIDER = [("sliding_window", 10), ("sliding_window", 8)]  # by one token, and narrower
# Models whose layer_types are those that the other fields give.
USUAL_LAYERS = ("gemma2", "gemma3_text", "qwen2, window from layer 2")

# A field, another value, and that it moves logits: the value in config.json is used and not ignored.
MUTATIONS = {
    "smollm3": [("no_rope_layers", [1, 1, 0, 1]), ("rms_norm_eps", 1e-3), ("hidden_act", "gelu_pytorch_tanh")],
    "mistral": WIDER + [("sliding_window", None)],
    "qwen2, window from layer 2": WIDER,
    "qwen3, window but every third layer": WIDER,
    "phi3, window": WIDER + [("sliding_window", None)],
    "starcoder2, window": WIDER + [("sliding_window", None)],
    "gemma2, no cap, other layers": [("attn_logit_softcapping", 2.0), ("layer_types", ["full_attention"] * 4)],
    "phi3": [("rope_parameters.partial_rotary_factor", 0.5), ("rms_norm_eps", 1e-3)],
    "phi3, long": [("rope_parameters.long_factor", SHORT), ("rope_parameters.attention_factor", 1.5),
                   ("original_max_position_embeddings", 64), ("rope_parameters.factor", 16.0)],
    "gpt_neox": [("use_parallel_residual", False), ("hidden_act", "gelu_new"), ("layer_norm_eps", 1e-3),
                 ("rope_parameters.partial_rotary_factor", 0.5), ("rope_parameters.rope_theta", 100.0)],
    "phi": [("hidden_act", "gelu"), ("rope_parameters.partial_rotary_factor", 1.0), ("layer_norm_eps", 1e-3)],
    "starcoder2": [("hidden_act", "gelu"), ("norm_epsilon", 1e-3)],
    "olmo2": [("rms_norm_eps", 1e-3), ("rope_parameters.rope_theta", 100.0)],
    "gemma": [("hidden_act", "silu"), ("rms_norm_eps", 1e-3)],
    "gemma2": WIDER + [("attn_logit_softcapping", None), ("attn_logit_softcapping", 1.0), ("final_logit_softcapping", None),
                       ("query_pre_attn_scalar", 16), ("hidden_activation", "silu")],
    "gemma3_text": WIDER + [
                    ("layer_types", ["full_attention"] * 3 + ["sliding_attention"] * 4), ("final_logit_softcapping", 2.0),
                    ("query_pre_attn_scalar", 16), ("rope_parameters.sliding_attention.rope_theta", 100.0),
                    ("rope_parameters.full_attention.rope_theta", 100.0)],
    "granite": [("embedding_multiplier", 1.0), ("residual_multiplier", 1.0), ("attention_multiplier", 0.5),
                ("logits_scaling", 1.0)],
}


def shaken(model, gemma):
    torch.manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 1 / math.sqrt(p.shape[-1]))
            else:
                p.normal_(0, 0.2).add_(0 if gemma or name.endswith("bias") else 1)
    return model.float().eval()


def made(name):
    type_name = name.split(",")[0]
    kw = dict(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if type_name == "gpt_neox":
        kw.pop("num_key_value_heads")
    kw.update(MODELS[name])
    config = AutoConfig.for_model(type_name, **kw)
    return shaken(AutoModelForCausalLM.from_config(config, attn_implementation="eager"), type_name.startswith("gemma"))


# ---- dtd's gradients under the names and in the order of transformers ----

MLP = {"gpt_neox": ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), "phi": ("mlp.fc1", "mlp.fc2"),
       "starcoder2": ("mlp.c_fc", "mlp.c_proj")}
NORMS = {"olmo2": {"attention_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"},
         "gemma2": {"attention_norm": "input_layernorm", "attention_post_norm": "post_attention_layernorm",
                    "ffn_norm": "pre_feedforward_layernorm", "ffn_post_norm": "post_feedforward_layernorm"}}
NORMS["gemma3_text"] = NORMS["gemma2"]
REST = {"gpt_neox": ("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out"),
        "phi": ("model.embed_tokens", "model.final_layernorm", "lm_head")}


def turned(v, config):
    """Neighbouring rows of the part of a head that rotates go half of that part apart."""
    hd = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    r = int(hd * (rope.get("partial_rotary_factor") or 1)) if "rope_type" in rope else hd
    heads = v.view(-1, hd, *v.shape[1:])
    pairs = heads[:, :r].reshape(-1, r // 2, 2, *v.shape[1:]).transpose(1, 2).reshape(-1, r, *v.shape[1:])
    return torch.cat([pairs, heads[:, r:]], 1).reshape(v.shape)


def of_names(ours, config):
    t, ret = config.model_type, {}
    rest = dict(zip(("tok_embeddings", "norm", "output"), REST.get(t, ("model.embed_tokens", "model.norm", "lm_head"))))
    norms = NORMS.get(t, {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"})
    fc = MLP.get(t)
    mlp = {"w1": fc[0], "w2": fc[1]} if fc else {"w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}
    out = {"gpt_neox": "attention.dense", "phi": "self_attn.dense"}.get(t, "self_attn.o_proj")
    for name, v in ours.items():
        part, base, leaf = name.split("."), name.rsplit(".", 1)[0], name.rsplit(".", 1)[1]
        if part[0] != "layers":
            ret[rest[base] + "." + leaf] = v
            continue
        at, base = "%s.layers.%s." % ("gpt_neox" if t == "gpt_neox" else "model", part[1]), ".".join(part[2:-1])
        if base in ("attention.wq", "attention.wk", "attention.q_norm", "attention.k_norm"):
            v = turned(v, config)
        if base in norms:
            ret[at + norms[base] + "." + leaf] = v
        elif base.startswith("feed_forward."):
            ret[at + mlp[base[-2:]] + "." + leaf] = v
        elif base == "attention.wo":
            ret[at + out + "." + leaf] = v
        else:
            ret[at + base.replace("attention.w", "self_attn.").replace("attention.", "self_attn.") +
                ("" if base.endswith("norm") else "_proj") + "." + leaf] = v
    return fused(ret, config)


def fused(tensors, config):
    ret = dict(tensors)
    for name in tensors:
        q = name.endswith(("q_proj.weight", "q_proj.bias"))
        parts = [ret[name.replace("q_proj", x + "_proj")] for x in "qkv"] if q else []
        if q and config.model_type == "gpt_neox":  # q, k and v of each head
            hd = config.hidden_size // config.num_attention_heads
            whole = torch.stack([p.view(-1, hd, *p.shape[1:]) for p in parts], 1).reshape(-1, *parts[0].shape[1:])
            ret[name.replace("self_attn.q_proj", "attention.query_key_value")] = whole
        elif q and config.model_type == "phi3":
            ret[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif "gate_proj" in name and config.model_type == "phi3":
            up = name.replace("gate_proj", "up_proj")
            ret[name.replace("gate_proj", "gate_up_proj")] = torch.cat([ret.pop(name), ret.pop(up)])
            continue
        if q and config.model_type in ("gpt_neox", "phi3"):
            for x in "qkv":
                ret.pop(name.replace("q_proj", x + "_proj"))
    return ret


# ---- checks ----


def near(what, bound, ours, theirs, relative=False):
    if sorted(ours) != sorted(theirs):
        fail("%s: other names: %s" % (what, sorted(set(map(str, ours)) ^ set(map(str, theirs)))[:6]))
    largest = max(b.abs().max().item() for b in theirs.values())
    worst, where = 0, ""
    for name, a in ours.items():
        b = theirs[name].double()
        d = (a.double() - b).abs().max().item()
        # of a gradient that is zero but for rounding, as that of keys' biases, only rounding can be compared
        d = d / max(b.abs().max().item(), 1e-3 * largest) if relative else d
        if not d <= worst:
            worst, where = d, name
    if not worst <= bound:
        fail("%s: %s differs by %g, not %g" % (what, where, worst, bound))
    print("%s: within %.1e" % (what, worst))


def same_tensors(what, a, b):
    if sorted(a) != sorted(b):
        fail("%s: other tensors: %s" % (what, sorted(set(a) ^ set(b))[:4]))
    for key in a:
        if a[key].dtype != b[key].dtype or not torch.equal(a[key], b[key]):
            fail("%s: %s differs" % (what, key))
    print("%s: %d tensors, the same bit for bit" % (what, len(a)))


LENGTHS = (20, 31, 48)  # longer than the first sequences of the stretched models


def theirs_of(model):
    with torch.no_grad():
        return {i: model(torch.tensor([ids])).logits[0, -1] for i, ids in enumerate(lines_of(*LENGTHS))}


def ours_of(folder, to):
    step = json.loads(dtctl("ckpt", "import", folder, to, "-o", "json"))["path"]
    return dict(enumerate(logits(step, lines_of(*LENGTHS)))), step


def check_gradients(name, model, step):
    lines = lines_of(33, 33, 33)
    batch = torch.tensor(lines)
    model.zero_grad()
    out = model(batch[:, :-1]).logits
    F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten()).backward()
    with tempfile.TemporaryDirectory() as folder:
        # save_pretrained gives the gradients the names of the parameters in a file
        model.save_pretrained(folder, state_dict={k: p.grad for k, p in model.named_parameters()})
        theirs = load_file(folder + "/model.safetensors")
    near(name + ", gradients", 1e-4, of_names(gradients(step, lines), model.config), theirs, relative=True)


def old_style(config):
    """As transformers 4 wrote it."""
    config, rope = dict(config), config["rope_parameters"]
    config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype", "float32")
    neox = config["model_type"] == "gpt_neox"
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    rope = dict(rope)
    config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    part = rope.pop("partial_rotary_factor", None)
    if part is not None:
        config["rotary_pct" if neox else "partial_rotary_factor"] = part
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {**rope, "type": "su" if kind == "longrope" else kind}
    if kind == "longrope":
        config["rope_scaling"].pop("original_max_position_embeddings", None)
    return config


def without_defaults(config):
    """What a file needs because the class of transformers has another default."""
    usual = AutoConfig.for_model(config["model_type"]).to_dict()
    sizes = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {k: v for k, v in config.items() if k in sizes or k not in usual or usual[k] != v}


def without_types(config):
    return {k: v for k, v in config.items() if k != "layer_types"}


def check_config(what, folder, change, want, bound, export):
    """The same tensors with another config.json."""
    at = folder + "/" + what.replace(" ", "-").replace(",", "")
    shutil.copytree(folder + "/theirs", at)
    json.dump(change(json.load(open(at + "/config.json"))), open(at + "/config.json", "w"))
    ours, _ = ours_of(at, at + "-in")
    near(what, bound, ours, want)
    if export:
        dtctl("ckpt", "export", at + "-in", at + "-out")
        near(what + ", exported", 0, theirs_of(opened(at + "-out")), want)


def changed(config, path, value):
    at = config
    for key in path.split(".")[:-1]:
        at = at[key]
    at[path.split(".")[-1]] = value
    return config


def check_mutation(name, folder, path, value, before):
    at = "%s/%s-%d" % (folder, path, len(os.listdir(folder)))
    shutil.copytree(folder + "/theirs", at)
    json.dump(changed(json.load(open(at + "/config.json")), path, value), open(at + "/config.json", "w"))
    theirs, (ours, _) = theirs_of(opened(at)), ours_of(at, at + "-in")
    near("%s, %s %s" % (name, path, str(value)[:30]), 2e-5, ours, theirs)
    moved = max((a - before[i]).abs().max().item() for i, a in theirs.items())
    if moved < 5e-4:
        fail("%s: %s moves logits by %g only" % (name, path, moved))


def check(name, folder):
    model = made(name)
    theirs, back = folder + "/theirs", folder + "/back"
    model.save_pretrained(theirs)
    tensors, want = load_file(theirs + "/model.safetensors"), theirs_of(model)
    ours, step = ours_of(theirs, folder + "/ours")
    near(name + ", logits", 2e-5, ours, want)
    check_gradients(name, model, step)
    dtctl("ckpt", "export", folder + "/ours", back)
    same_tensors(name, tensors, load_file(back + "/model.safetensors"))
    near(name + ", as transformers reads our export", 0, theirs_of(opened(back)), want)
    a, b = ({**AutoConfig.from_pretrained(x).to_dict(), "_name_or_path": ""} for x in (theirs, back))
    if a != b:
        fail("%s: config.json: %s" % (name, {k: (a.get(k), b.get(k)) for k in {*a, *b} if a.get(k) != b.get(k)}))
    dtctl("ckpt", "export", folder + "/ours", folder + "/shards", "--shard-bytes", "40000")
    parts = {}
    for file in os.listdir(folder + "/shards"):
        parts.update(load_file(folder + "/shards/" + file) if file.endswith(".safetensors") else {})
    same_tensors(name + ", several files", tensors, parts)
    check_config(name + ", of transformers 4", folder, old_style, want, 2e-5, True)
    check_config(name + ", defaults left out", folder, without_defaults, want, 2e-5, True)
    if name in USUAL_LAYERS:
        check_config(name + ", layer_types left out", folder, without_types, want, 2e-5, True)
    for path, value in MUTATIONS.get(name, []):
        check_mutation(name, folder, path, value, want)


def check_refusals(folder):
    """Fields that transformers would compute with."""
    for name, field, value, part in (
            ("phi", "qk_layernorm", True, "qk_layernorm is set"), ("smollm3", "use_sliding_window", True, "is set"),
            ("gemma2", "layer_types", ["sliding_attention"] + ["full_attention"] * 3, "no windows in the layers"),
            ("gemma", "use_bidirectional_attention", True, "is set"), ("gpt_neox", "hidden_act", "gelu_fast", "hidden_act is"),
            ("gpt_neox", "rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.2}, "odd"),
            ("olmo2", "layer_types", ["sliding_attention"] * 4, "layer_types has"),
            ("granite", "quantization_config", {"bits": 4}, "quantization_config")):
        at = "%s/%s-%s" % (folder, name, field)
        made(name).save_pretrained(at)
        json.dump({**json.load(open(at + "/config.json")), field: value}, open(at + "/config.json", "w"))
        refused("%s with %s %s" % (name, field, value), part, "ckpt", "import", at, at + "-in")


def main():
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            check(name, folder)
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(folder)


main()
