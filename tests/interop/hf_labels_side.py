"""The part of interop_hf.py for models that classify texts: GPT2ForSequenceClassification and its relatives. Imports of
them and of models of language, logits, losses and gradients of padded texts, and exports, compared with transformers."""
import json
import os
import random
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file
from transformers import (AutoConfig, AutoModelForSequenceClassification, GPT2Config, GPT2ForSequenceClassification,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Qwen2Config,
                          Qwen2ForCausalLM, Qwen2ForSequenceClassification)

DTCTL, LOGITS, GRADIENTS = sys.argv[1:]
sys.argv = [sys.argv[0], DTCTL]
from hf_tools import dtctl, fail, refused, tool

SEQ, PAD = 24, 7
CONFIGS = {
    "gpt2": (GPT2Config, GPT2LMHeadModel, GPT2ForSequenceClassification,
             dict(n_positions=SEQ, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)),
    "llama": (LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification,
              dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification,
              dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True)),
}


def unit_gain(model):
    """Weights of the standard deviation 1 / sqrt(inputs): with those of transformers most changes move nothing."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                inputs = p.shape[0] if "c_" in name else p.shape[1]
                p.normal_(0, 1 if "wte" in name or "embed_tokens" in name else inputs**-0.5)
            else:
                p.add_(torch.randn_like(p) * 0.2)
    return model.eval()


def model_of(kind, labels):
    config, language, classes, sizes = CONFIGS[kind]
    extra = dict(num_labels=labels, pad_token_id=PAD) if labels else {}
    c = config(vocab_size=256, bos_token_id=None, eos_token_id=None, attn_implementation="eager", **sizes, **extra)
    return unit_gain((classes if labels else language)(c))


def texts(labels):
    """Lines of real tokens, none of which is the padding, and their classes."""
    rng = random.Random(3)
    for n in (1, 2, 5, 11, 23, SEQ):
        yield [rng.choice([t for t in range(256) if t != PAD]) for _ in range(n)], rng.randrange(labels)


def padded(lines):
    return torch.tensor([ids + [PAD] * (SEQ - len(ids)) for ids, _ in lines])


def same_logits(name, model, step):
    lines = list(texts(model.config.num_labels))
    with torch.no_grad():
        theirs = model(padded(lines)).logits.double()
    for row, line in zip(theirs, tool(LOGITS, [step], [ids for ids, _ in lines]), strict=True):
        mine = torch.tensor([float(x) for x in line.split()], dtype=torch.float64)
        if len(mine) != len(row) or not (mine - row).abs().max() < 2e-5:
            fail("%s: logits %s, but transformers has %s" % (name, mine, row))
    print("%s: logits of %d texts" % (name, len(lines)))


def to_hf(kind, name, g):
    """The name there, and rows in the order there: dtd rotates neighbouring rows."""
    if kind == "gpt2" or name == "score.weight":
        return name, g
    if name in ("tok_embeddings.weight", "norm.weight"):
        return {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}[name], g
    layer, rest = name.split(".", 2)[1:]
    short = {"attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
             "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
             "feed_forward.w3": "mlp.up_proj", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    part, end = rest.rsplit(".", 1)
    if part in ("attention.wq", "attention.wk"):
        g = g.reshape(-1, 4, 2, *g.shape[1:]).transpose(1, 2).reshape(g.shape)
    return "model.layers.%s.%s.%s" % (layer, short[part], end), g


def same_gradients(name, kind, model, step):
    lines = list(texts(model.config.num_labels))
    bound = 1e-8 if kind == "gpt2" else 1e-5  # RMSNorm of transformers computes in float32
    model.zero_grad()
    loss = model.double()(padded(lines), labels=torch.tensor([label for _, label in lines])).loss
    loss.backward()
    given = [[len(ids)] + ids + [0] * (SEQ - len(ids)) + [label] for ids, label in lines]
    mine = tool(GRADIENTS, [step, "train.dtype=float64", "train.numerics=proof"], given)
    if abs(float(mine[0].split()[1]) - loss.item()) > bound:
        fail("%s: %s, but transformers has %.12g" % (name, mine[0], loss.item()))
    theirs = {key: p.grad for key, p in model.named_parameters()}
    for line in mine[1:]:
        key, shape, *numbers = line.split()
        g = torch.tensor([float(x) for x in numbers], dtype=torch.float64).reshape([int(n) for n in shape.split("x")])
        key, g = to_hf(kind, key, g)
        other = theirs.pop(key)[:SEQ] if "wpe" in key else theirs.pop(key)
        if not (g - other).abs().max() <= bound * max(other.abs().max(), 1e-3):
            fail("%s: the gradient of %s differs by %g" % (name, key, (g - other).abs().max()))
    if theirs:
        fail("%s: no gradient of %s" % (name, sorted(theirs)))
    model.float()
    print("%s: loss and all gradients" % name)


def same_tensors(name, a, b, without=()):
    a = {key: t for key, t in a.items() if key not in without}
    if sorted(a) != sorted(b) or any(not torch.equal(a[key], b[key]) for key in a):
        fail("%s: other tensors" % name)


def check_import(kind, labels, folder):
    name = "%s with %d labels" % (kind, labels)
    model, theirs, out, back = model_of(kind, labels), folder + "/model", folder + "/ckpt", folder + "/back"
    model.save_pretrained(theirs)
    dtctl("ckpt", "import", theirs, out)
    same_logits(name, model, out + "/step-0")
    same_gradients(name, kind, model, out + "/step-0")
    dtctl("ckpt", "export", out, back)
    same_tensors(name, load_file(theirs + "/model.safetensors"), load_file(back + "/model.safetensors"))
    again = AutoModelForSequenceClassification.from_pretrained(back, attn_implementation="eager").eval()
    config = json.load(open(back + "/config.json"))
    if type(again) is not type(model) or config["num_labels"] != labels or config["pad_token_id"] != PAD:
        fail("%s: %s, %s" % (name, type(again), config))
    with torch.no_grad():
        lines = padded(list(texts(labels)))
        if not torch.equal(model(lines).logits, again(lines).logits):
            fail("%s: the export has other logits" % name)
    print("%s: exported bit for bit" % name)
    write_job(folder + "/job.yaml", kind, labels, folder + "/own")
    if "is new" in tool_text("ckpt", "import", theirs, folder + "/job.yaml"):
        fail("%s: the job's import has a new head" % name)
    same_logits(name + ", with a job file", model, folder + "/own/step-0")
    job = folder + "/plain.yaml"
    write_job(job, kind, 0, folder + "/plain")
    refused(name + " as a model of language", "model.labels is 0, but", "ckpt", "import", theirs, job)


def write_job(path, kind, labels, out):
    sizes = {"gpt2": "arch: gpt2, dim: 32, layers: 2, heads: 4, ffn: 128",
             "llama": "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, norm_eps: 1e-6",
             "qwen2": "dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, norm_eps: 1e-6, tied: true, qkv_bias: true"}
    with open(os.path.join(os.path.dirname(path), "rows.jsonl"), "w") as f:
        f.write('{"text": "a", "label": 1}\n')
    with open(path, "w") as f:
        f.write("name: labels\nmodel: {%s, vocab: 256, labels: %d}\ndata: {train: [rows.jsonl]}\n"
                "train: {steps: 4, seq: %d, global_batch: 6, micro_batch: 2, seed: 9}\ncheckpoint: {dir: %s}\n"
                % (sizes[kind], labels, SEQ, out))


def check_language(kind, labels, folder):
    """A model of language gets a new head; its body is loaded."""
    name = "%s of language to %d labels" % (kind, labels)
    model, theirs, out, back = model_of(kind, 0), folder + "/model", folder + "/ckpt", folder + "/back"
    model.save_pretrained(theirs)
    write_job(folder + "/job.yaml", kind, labels, out)
    told = tool_text("ckpt", "import", theirs, folder + "/job.yaml")
    if "score.weight of %d labels is new" % labels not in told:
        fail("%s: the import tells nothing of the new head: %s" % (name, told))
    dtctl("ckpt", "export", out, back)
    mine, body = load_file(back + "/model.safetensors"), load_file(theirs + "/model.safetensors")
    score = mine.pop("score.weight")
    same_tensors(name, body, mine, without=("lm_head.weight",))
    if list(score.shape) != [labels, 32] or not 0.015 < score.std().item() < 0.025:
        fail("%s: score.weight is %s" % (name, score))
    again = AutoModelForSequenceClassification.from_pretrained(back, attn_implementation="eager").eval()
    if again.config.num_labels != labels or not isinstance(again, CONFIGS[kind][2]):
        fail("%s: %s" % (name, again.config))
    again.config.pad_token_id = PAD
    same_logits(name, again, out + "/step-0")
    same_gradients(name, kind, again, out + "/step-0")


def tool_text(*args):
    import subprocess
    done = subprocess.run([DTCTL] + list(args), capture_output=True, text=True)
    if done.returncode:
        fail("dtctl %s: %s" % (" ".join(args), done.stderr))
    return done.stdout + done.stderr


def check_refused(folder):
    model = model_of("gpt2", 3)
    model.save_pretrained(folder)
    config = json.load(open(folder + "/config.json"))
    for key, value, part in (("problem_type", "regression", "problem_type"),
                             ("problem_type", "multi_label_classification", "problem_type"),
                             ("id2label", {"0": "LABEL_0"}, "labels; dtd supports 2 to 65536")):
        with open(folder + "/config.json", "w") as f:
            json.dump({**config, key: value}, f)
        refused("%s %s" % (key, value), part, "ckpt", "import", folder, folder + "/out")


def main():
    for kind in CONFIGS:
        for labels in (2, 5):
            with tempfile.TemporaryDirectory() as folder:
                check_import(kind, labels, folder)
            with tempfile.TemporaryDirectory() as folder:
                check_language(kind, labels, folder)
    with tempfile.TemporaryDirectory() as folder:
        check_refused(folder)


main()
