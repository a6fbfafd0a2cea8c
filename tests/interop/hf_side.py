"""The part of interop_hf.py that runs in the Python with transformers. It imports tiny random models into dtd, compares
logits, and exports them again bit for bit; also a model cut into several files, and one in bfloat16."""
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models as tokenizer_models, pre_tokenizers, trainers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

DTCTL, LOGITS = sys.argv[1:]


def run(*args):
    done = subprocess.run([DTCTL] + list(args), capture_output=True, text=True)
    if done.returncode:
        sys.exit("dtctl %s: %s" % (" ".join(args), done.stderr))
    return done.stdout


def logits(step, lines):
    text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
    done = subprocess.run([LOGITS, step], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [torch.tensor([float(x) for x in line.split()]) for line in done.stdout.splitlines()]


def same_logits(name, model, step):
    rng = random.Random(3)
    lines = [[rng.randrange(256) for _ in range(n)] for n in (1, 2, 3, 7, 16, 31, 48)]
    worst = 0
    with torch.no_grad():
        for ids, mine in zip(lines, logits(step, lines), strict=True):
            theirs = model(torch.tensor([ids])).logits[0, -1].double()
            worst = max(worst, ((mine.double() - theirs).abs().max() / theirs.abs().max()).item())
    if not worst < 2e-6:
        sys.exit("%s: logits differ by %g of the largest" % (name, worst))
    print("%s: logits within %.1e of the largest" % (name, worst))


def same_tensors(name, a, b):
    if sorted(a) != sorted(b):
        sys.exit("%s: other tensors: %s" % (name, sorted(set(a) ^ set(b))))
    for key in a:
        if a[key].dtype != b[key].dtype or not torch.equal(a[key], b[key]):
            sys.exit("%s: %s is another" % (name, key))
    print("%s: %d tensors, the same bit for bit" % (name, len(a)))


def shaken(model):
    """Sets norms to values other than 1 and biases to values other than 0."""
    torch.manual_seed(11)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return model.eval()


RECENT = int(transformers.__version__.split(".")[0]) >= 5


def rope_keys(rope):
    """The keys of a configuration for rotary positions, as this version of transformers spells them."""
    if RECENT:
        return {"rope_parameters": rope}
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
    scaled = scaling.get("rope_type", "default") != "default"
    return {"rope_theta": rope["rope_theta"], **({"rope_scaling": scaling} if scaled else {})}


def models():
    torch.manual_seed(5)
    gpt2 = GPT2Config(vocab_size=256, n_positions=48, n_embd=48, n_layer=3, n_head=4, attn_pdrop=0, embd_pdrop=0,
                      resid_pdrop=0, bos_token_id=0, eos_token_id=0)
    yield "gpt2", GPT2LMHeadModel(gpt2)
    gpt2.activation_function, gpt2.n_inner = "gelu", 100
    yield "gpt2, exact GELU", GPT2LMHeadModel(gpt2)
    llama = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=8,
                 num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
    yield "llama", LlamaForCausalLM(LlamaConfig(**llama))
    llama.update(num_key_value_heads=8, tie_word_embeddings=True)
    yield "llama, tied", LlamaForCausalLM(LlamaConfig(**llama))
    yield "llama, wide heads", LlamaForCausalLM(LlamaConfig(head_dim=12, **llama))
    llama.update(num_key_value_heads=2, rms_norm_eps=1e-6, **rope_keys({"rope_type": "default", "rope_theta": 1e6}))
    yield "qwen2, tied", Qwen2ForCausalLM(Qwen2Config(**llama))
    llama.update(tie_word_embeddings=False)
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**llama))
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(head_dim=12, **llama))
    for key in rope_keys({"rope_theta": 0, "rope_type": "linear"}):
        llama.pop(key, None)
    for rope in ({"rope_type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0},
                 {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 16},
                 {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0},
                 {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False,
                  "mscale": 0.7, "mscale_all_dim": 1.0}):
        yield "llama, " + rope["rope_type"], LlamaForCausalLM(
            LlamaConfig(head_dim=24, **rope_keys({"rope_theta": 1e3, **rope}), **llama))
    yield "mistral", MistralForCausalLM(MistralConfig(head_dim=12, sliding_window=None, **llama))


def unit_gain(model):
    """Weights of standard deviation 1 / sqrt(inputs), norms near 1, biases near 0: with the small weights of a fresh model
    its attention is nearly uniform, and a wrong mask or cap would not show."""
    torch.manual_seed(13)
    with torch.no_grad():
        for name, p in model.named_parameters():
            std = p.shape[-1] ** -0.5 if p.ndim == 2 else 0.2
            p.copy_(torch.randn_like(p) * std + (1 if "norm" in name else 0))
    return model.eval()


def windows():
    keys = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=2,
                max_position_embeddings=64, rms_norm_eps=1e-5, num_hidden_layers=4, attn_implementation="eager")
    yield "mistral, window 9", MistralForCausalLM(MistralConfig(head_dim=12, sliding_window=9, **keys))
    yield "mixtral, window 9", MixtralForCausalLM(MixtralConfig(head_dim=12, sliding_window=9, num_local_experts=4, **keys))
    qwen = dict(use_sliding_window=True, sliding_window=20, **keys)
    yield "qwen2, window from layer 1", Qwen2ForCausalLM(Qwen2Config(max_window_layers=1, **qwen))
    types = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    yield "qwen3, window but every third layer", Qwen3ForCausalLM(Qwen3Config(layer_types=types, head_dim=12, **qwen))


def largest_difference(model, step, lines):
    with torch.no_grad():
        return max((mine.double() - model(torch.tensor([ids])).logits[0, -1].double()).abs().max().item()
                   for ids, mine in zip(lines, logits(step, lines), strict=True))


def check_window(name, model, folder):
    """Logits behind the window agree, those of a window that is wider by one token do not, and the export has the
    window, also without the config.json of the import."""
    theirs, ours, back = folder + "/theirs", folder + "/ours", folder + "/back"
    rng = random.Random(3)
    lines = [[rng.randrange(256) for _ in range(n)] for n in (5, 33, 48)]
    unit_gain(model).save_pretrained(theirs)
    step = json.loads(run("ckpt", "import", theirs, ours, "-o", "json"))["path"]
    near = largest_difference(model, step, lines)
    run("ckpt", "export", ours, back)
    same_tensors(name, load_file(theirs + "/model.safetensors"), load_file(back + "/model.safetensors"))
    again = AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager")
    exported = largest_difference(again.eval(), step, lines)
    written = json.load(open(back + "/config.json"))
    written["sliding_window"] += 1
    json.dump(written, open(back + "/config.json", "w"))
    other = largest_difference(AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").eval(), step, lines)
    if not near <= 2e-5 or not exported <= 2e-5:
        sys.exit("%s: logits differ by %g, and by %g as exported" % (name, near, exported))
    if not other > 5e-4:
        sys.exit("%s: a window of one token more changes logits by %g only" % (name, other))
    print("%s: logits within %.1e, with a wider window %.1e" % (name, near, other))


def check(name, model, folder):
    theirs, ours, back = folder + "/theirs", folder + "/ours", folder + "/back"
    model.save_pretrained(theirs)
    step = json.loads(run("ckpt", "import", theirs, ours, "-o", "json"))["path"]
    run("ckpt", "verify", step)
    same_logits(name, model, step)
    run("ckpt", "export", ours, back)
    same_tensors(name, load_file(theirs + "/model.safetensors"), load_file(back + "/model.safetensors"))
    again = AutoModelForCausalLM.from_pretrained(back)
    for (key, a), (_, b) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        if not torch.equal(a, b):
            sys.exit("%s: transformers reads another %s" % (name, key))
    same_logits(name + ", as transformers reads our export", again.eval(), step)
    shards = folder + "/shards"
    files = json.loads(run("ckpt", "export", ours, shards, "--shard-bytes", "40000", "-o", "json"))["files"]
    if files < 4:
        sys.exit("%s: %d files" % (name, files))
    parts = AutoModelForCausalLM.from_pretrained(shards).state_dict()
    same_tensors(name + ", %d files" % files, dict(model.state_dict()), dict(parts))
    run("ckpt", "import", shards, folder + "/once-more")
    run("ckpt", "export", folder + "/once-more", folder + "/last")
    same_tensors(name + ", from shards", load_file(theirs + "/model.safetensors"), load_file(folder + "/last/model.safetensors"))
    run("ckpt", "export", ours, folder + "/half", "--dtype", "bfloat16")
    same_tensors(name + ", bfloat16", {k: v.bfloat16() for k, v in load_file(theirs + "/model.safetensors").items()},
                 load_file(folder + "/half/model.safetensors"))
    model.half().save_pretrained(folder + "/f16")
    run("ckpt", "import", folder + "/f16", folder + "/of-f16")
    run("ckpt", "export", folder + "/of-f16", folder + "/f32", "--dtype", "float32")
    same_tensors(name + ", of float16", {k: v.float() for k, v in load_file(folder + "/f16/model.safetensors").items()},
                 load_file(folder + "/f32/model.safetensors"))


# ---- what else is in a folder ----


def tokenizer():
    """Trained on this file."""
    t = Tokenizer(tokenizer_models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train([__file__], trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def small(arch, vocab, **kw):
    torch.manual_seed(5)
    if arch == "gpt2":
        return shaken(GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_positions=64, n_embd=48, n_layer=2, n_head=4, **kw)))
    model, config = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config),
                     "qwen3": (Qwen3ForCausalLM, Qwen3Config)}[arch]
    return shaken(model(config(vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                               num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, **kw)))


def equal(what, a, b):
    if a != b:
        sys.exit("%s: %r is not %r" % (what, a, b))


TEXTS = ["<|im_start|>user\nhello<|im_end|>\n", "def tokenizer():\n    return 1999", " <|endoftext|> the end", "[PAD][PAD]"]


def same_ids(what, folder, tok):
    """transformers opens the exported folder and encodes as the original tokenizer did."""
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        equal("%s: ids of %r" % (what, text), theirs(text, add_special_tokens=False).input_ids,
              tok.encode(text, add_special_tokens=False).ids)


def round_trip(arch, form, folder):
    """Out of a folder with a tokenizer in this form and back: nothing of config.json, the small files and the ids is lost."""
    tok, theirs = tokenizer(), "%s/%s-%s" % (folder, arch, form)
    kw = dict(bos_token_id=5, eos_token_id=6)
    if arch != "gpt2":
        kw.update(max_position_embeddings=8192, eos_token_id=[6, 7], rope_theta=5e5)
    added = ["<|im_start|>", "<|im_end|>", "[PAD]"] if form != "plain pair" else []
    model = small(arch, tok.get_vocab_size() + len(added), **kw).bfloat16()
    model.save_pretrained(theirs)
    if form != "json":
        tok.model.save(theirs)
    tok.add_special_tokens([AddedToken(t) for t in added])
    if form == "json":
        tok.save(theirs + "/tokenizer.json")
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"},
                  open(theirs + "/tokenizer_config.json", "w"))
    elif added:
        json.dump({t: tok.token_to_id(t) for t in added}, open(theirs + "/added_tokens.json", "w"))
    open(theirs + "/chat_template.jinja", "w").write("{{ messages }}\n")
    what, ours, back = "%s, %s" % (arch, form), theirs + "-in", theirs + "-out"
    equal(what + ": warnings", json.loads(run("ckpt", "import", theirs, ours, "-o", "json"))["warnings"], [])
    run("ckpt", "export", ours, back)
    same_ids(what, back, tok)
    a, b = (AutoConfig.from_pretrained(x).to_dict() for x in (theirs, back))
    equal(what + ": config.json", {k: v for k, v in a.items() if k != "_name_or_path"},
          {k: v for k, v in b.items() if k != "_name_or_path"})
    for name in ("generation_config.json", "chat_template.jinja", "tokenizer_config.json"):
        if os.path.exists(theirs + "/" + name):
            equal(what + ": " + name, open(theirs + "/" + name).read(), open(back + "/" + name).read())
    same_tensors(what, load_file(theirs + "/model.safetensors"), load_file(back + "/model.safetensors"))


def heads(folder):
    """A head that differs from its tied embedding is used, as in transformers; wrappers' prefixes do not."""
    tok, theirs = tokenizer(), folder + "/head"
    small("llama", 256, tie_word_embeddings=True).save_pretrained(theirs)
    t = load_file(theirs + "/model.safetensors")
    t["lm_head.weight"] = torch.randn_like(t["model.embed_tokens.weight"])
    save_file({"_orig_mod.module." + k: v for k, v in t.items()}, theirs + "/model.safetensors")
    done = json.loads(run("ckpt", "import", theirs, folder + "/head-in", "-o", "json"))
    equal("warnings", ["ties the head" in w for w in done["warnings"]], [True])
    save_file(t, theirs + "/model.safetensors", metadata={"format": "pt"})
    if RECENT:  # earlier versions tie the head although the file has one
        same_logits("a head of its own", AutoModelForCausalLM.from_pretrained(theirs).eval(), done["path"])


def main():
    with tempfile.TemporaryDirectory() as folder:
        for arch in ("gpt2", "llama"):
            for form in ("json", "plain pair", "pair with added tokens"):
                round_trip(arch, form, folder)
        for arch in ("qwen2", "qwen3"):
            round_trip(arch, "json", folder)
        heads(folder)
    for name, model in models():
        with tempfile.TemporaryDirectory() as folder:
            check(name, shaken(model), folder)
    for name, model in windows():
        with tempfile.TemporaryDirectory() as folder:
            check_window(name, model, folder)


main()
