"""The part of interop_tok.py for chat templates: dtctl prepares conversations, and the ids and the loss mask must be those of
apply_chat_template of transformers. The templates are written here in Jinja after the published ones, with the marks that
transformers needs to tell which tokens are the assistant's.

    chat_side.py DTCTL
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError:
    print("skipped: no transformers")
    sys.exit(77)
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers as P, trainers

from bpe_side import LLAMA3, corpus

DTCTL = sys.argv[1]
ROLE = "{{ message['role'] }}"
TURN = "{% for message in messages %}{% if message['role'] == 'assistant' %}ASSISTANT{% else %}OTHER{% endif %}{% endfor %}"


def template(bos, head, content, end, behind, assistant="assistant"):
    """`head` stands before a text; ROLE in it is the role's name."""
    other = head + content + end + behind
    answer = head.replace(ROLE, assistant) + "{% generation %}" + content + end + "{% endgeneration %}" + behind
    return bos + TURN.replace("ASSISTANT", answer).replace("OTHER", other)


PLAIN, TRIMMED = "{{ message['content'] }}", "{{ message['content'] | trim }}"
TEMPLATES = {
    "llama3": (template("<|begin_of_text|>", "<|start_header_id|>" + ROLE + "<|end_header_id|>{{ '\\n\\n' }}", TRIMMED, "<|eot_id|>", ""),
               True, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "chatml": (template("", "<|im_start|>" + ROLE + "{{ '\\n' }}", PLAIN, "<|im_end|>", "{{ '\\n' }}"), True, ["<|im_start|>", "<|im_end|>"]),
    "gemma": (template("<bos>", "<start_of_turn>" + ROLE + "{{ '\\n' }}", TRIMMED, "<end_of_turn>", "{{ '\\n' }}", "model"), False,
              ["<bos>", "<start_of_turn>", "<end_of_turn>"]),
    "phi": (template("", "<|" + ROLE + "|>{{ '\\n' }}", PLAIN, "<|end|>", "{{ '\\n' }}"), True,
            ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]),
    "mistral": ("<s>{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
                "{% else %}{% generation %}{{ message['content'] }}</s>{% endgeneration %}{% endif %}{% endfor %}", False,
                ["<s>", "</s>", "[INST]", "[/INST]"]),
}


def tokenizer(specials, path):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = P.Sequence([P.Split(Regex(LLAMA3), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1200, initial_alphabet=P.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    t.save(path)
    return transformers.PreTrainedTokenizerFast(tokenizer_file=path)


def conversations(rng, system):
    """Texts of the assistant begin with a visible character: transformers would join white space to the line before."""
    lines = [line.strip() for text in corpus() for line in text.splitlines()]
    lines = [line for line in lines if line and "<" not in line and "[INST]" not in line]
    for _ in range(200):
        turns = [{"role": "system", "content": rng.choice(lines)}] if system and rng.random() < 0.5 else []
        for _ in range(rng.randrange(1, 4)):
            text = rng.choice(["", " ", "\n", "  \n\n", "\t"]) + rng.choice(lines) + rng.choice(["", " ", "\n", "\n\n", "été 中文 123"])
            turns += [{"role": "user", "content": text},
                      {"role": "assistant", "content": rng.choice(lines) + rng.choice(["", " ", "\n", ".\n\n", "\n  x"])}]
        yield turns


def prepared(folder, name):
    """ids and weights of each document of the set that dtctl prepares."""
    job = {"name": "chat", "model": {"arch": "llama", "dim": 32, "layers": 1, "heads": 2},
           "data": {"train": ["chats.jsonl"], "tokenizer": "bpe", "tokenizer_files": ["tokenizer.json"], "template": name, "cache": "cache-" + name},
           "train": {"steps": 1, "seq": 16, "global_batch": 1, "micro_batch": 1}, "checkpoint": {"dir": "ckpt"}}
    with open(f"{folder}/job.yaml", "w") as f:
        json.dump(job, f)
    run = subprocess.run([DTCTL, "plan", "job.yaml"], cwd=folder, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{name}: {run.stderr}")
    sets = [d for d in os.listdir(f"{folder}/cache-{name}") if len(d) == 64]
    assert len(sets) == 1, sets
    at = f"{folder}/cache-{name}/{sets[0]}"
    ids = struct.unpack(f"<{os.path.getsize(at + '/tokens-00000.bin') // 2}H", open(at + "/tokens-00000.bin", "rb").read())
    bits = open(at + "/weights.bin", "rb").read()
    ends = open(at + "/documents.bin", "rb").read()
    begin = 0
    for end in struct.unpack(f"<{len(ends) // 8}Q", ends):
        yield list(ids[begin:end]), [bits[i // 8] >> i % 8 & 1 for i in range(begin, end)]
        begin = end


def main():
    rng = random.Random(5)
    for name, (jinja, system, specials) in TEMPLATES.items():
        with tempfile.TemporaryDirectory() as folder:
            theirs = tokenizer(specials, folder + "/tokenizer.json")
            chats = list(conversations(rng, system))
            with open(folder + "/chats.jsonl", "w") as f:
                f.writelines(json.dumps({"messages": c}) + "\n" for c in chats)
            got = list(prepared(folder, name))
            assert len(got) == len(chats), (len(got), len(chats))
            counted = 0
            for chat, (ids, weights) in zip(chats, got):
                want = theirs.apply_chat_template(chat, chat_template=jinja, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
                if ids != list(want["input_ids"]):
                    sys.exit(f"{name}: {chat}\nours   {theirs.convert_ids_to_tokens(ids)}\ntheirs {theirs.convert_ids_to_tokens(want['input_ids'])}")
                if weights != list(want["assistant_masks"]):
                    sys.exit(f"{name}: {chat}\nours   {weights}\ntheirs {want['assistant_masks']}")
                counted += sum(weights)
            assert counted > 0
            print(f"{name}: {len(chats)} conversations with {counted} tokens that count equal transformers {transformers.__version__}", flush=True)


main()
