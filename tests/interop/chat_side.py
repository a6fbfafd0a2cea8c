"""The part of interop_tok.py for chat templates: dtctl prepares conversations, and the ids and the loss mask must be those of
apply_chat_template of transformers. The templates are written here in Jinja after the published ones, with the marks that
transformers needs to tell which tokens are the assistant's. Questions, whose last turn is open, must be those of
add_generation_prompt; a message that spells control tokens must be encoded as text. Last, an imported model answers two
questions as `generate` of transformers does.

    chat_side.py DTCTL CHAT_TOOL
"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError:
    print("skipped: no transformers")
    sys.exit(77)
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers as P, trainers

from bpe_side import LLAMA3, corpus

DTCTL, CHAT_TOOL = sys.argv[1:]
ROLE = "{{ message['role'] }}"
TURN = "{% for message in messages %}{% if message['role'] == 'assistant' %}ASSISTANT{% else %}OTHER{% endif %}{% endfor %}"


def template(bos, head, content, end, behind, assistant="assistant"):
    """`head` stands before a text; ROLE in it is the role's name."""
    other = head + content + end + behind
    answer = head.replace(ROLE, assistant) + "{% generation %}" + content + end + "{% endgeneration %}" + behind
    opens = "{% if add_generation_prompt %}" + head.replace(ROLE, assistant) + "{% endif %}"
    return bos + TURN.replace("ASSISTANT", answer).replace("OTHER", other) + opens


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


def plain_ids(theirs, text, specials, texts):
    """The ids of a rendered text in which @0@, @1@, .. stand for the texts: control tokens only where the template has them. The
    tokens between them are those of the library `tokenizers`, which takes special tokens for text on demand."""
    inner, ids = theirs.backend_tokenizer, []
    inner.encode_special_tokens = True
    for part in re.split("(" + "|".join(map(re.escape, specials)) + ")", text):
        if part in specials:
            ids.append(theirs.convert_tokens_to_ids(part))
        elif part:
            part = re.sub("@([0-9]+)@", lambda m: texts[int(m[1])], part)
            ids += inner.encode(part, add_special_tokens=False).ids
    inner.encode_special_tokens = False
    return ids


def questions(rng, chats, specials):
    """The beginnings of conversations, up to a user's turn. In half of them, texts spell control tokens."""
    for i, chat in enumerate(chats):
        chat = [dict(turn) for turn in chat[:-1]]
        if i % 2:
            for turn in chat:
                cut = rng.randrange(turn["role"] == "assistant", len(turn["content"]) + 1)  # as in conversations()
                forged = "".join(rng.choice(specials + ["user\n", " ", "\n"]) for _ in range(rng.randrange(1, 5)))
                turn["content"] = turn["content"][:cut] + forged + turn["content"][cut:]
        yield chat


def compare_questions(rng, name, folder, theirs, jinja, specials, chats):
    chats = list(questions(rng, chats, specials))
    lines = "".join(json.dumps([[t["role"], t["content"]] for t in c]) + "\n" for c in chats)
    run = subprocess.run([CHAT_TOOL, folder + "/tokenizer.json", name], input=lines, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{name}: {run.stderr}")
    for i, (chat, line) in enumerate(zip(chats, run.stdout.splitlines(), strict=True)):
        ids = [int(x) for x in line.split()]
        texts = [t["content"].strip() if "| trim" in jinja else t["content"] for t in chat]
        marked = [{"role": t["role"], "content": f"@{k}@"} for k, t in enumerate(chat)]
        text = theirs.apply_chat_template(marked, chat_template=jinja, tokenize=False, add_generation_prompt=True)
        want = plain_ids(theirs, text, specials, texts)
        if i % 2 == 0:
            asked = theirs.apply_chat_template(chat, chat_template=jinja, tokenize=True, return_dict=True, add_generation_prompt=True)
            assert want == list(asked["input_ids"]), (name, chat)
        if ids != want:
            sys.exit(f"{name}: {chat}\nours   {theirs.convert_ids_to_tokens(ids)}\ntheirs {theirs.convert_ids_to_tokens(want)}")
    print(f"{name}: {len(chats)} questions equal transformers {transformers.__version__}", flush=True)


def compare_answers():
    """A model with a published template in its folder: dtctl recognizes it, and both continue with the most likely tokens."""
    import torch
    jinja, _, specials = TEMPLATES["chatml"]
    jinja = jinja.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    questions, limit = ["What is two and two?", "And <|im_end|> who says so?"], 12
    with tempfile.TemporaryDirectory() as folder:
        theirs = tokenizer(specials, folder + "/tokenizer.json")
        theirs.backend_tokenizer.decoder = decoders.ByteLevel()
        theirs.chat_template = jinja
        theirs.save_pretrained(folder + "/model")
        torch.manual_seed(3)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=len(theirs), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, initializer_range=0.3, eos_token_id=theirs.convert_tokens_to_ids("<|im_end|>"))).eval()
        model.save_pretrained(folder + "/model")
        subprocess.run([DTCTL, "ckpt", "import", folder + "/model", folder + "/ckpt"], check=True, capture_output=True)
        run = subprocess.run([DTCTL, "generate", folder + "/ckpt", "--chat", "--system", "Be brief.", "--tokens", str(limit),
                              "--temperature", "0", "-o", "jsonl"], input="\n".join(questions), capture_output=True, text=True)
        answers = [json.loads(line) for line in run.stdout.splitlines()]
        assert run.returncode == 0 and len(answers) == 2, run.stderr
        chat, texts = [{"role": "system", "content": "@0@"}], ["Be brief."]
        tail = theirs.convert_tokens_to_ids("<|im_end|>")
        ids = []
        for question, ours in zip(questions, answers):
            chat, texts = chat + [{"role": "user", "content": f"@{len(texts)}@"}], texts + [question]
            text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids += plain_ids(theirs, text, specials, texts)
            with torch.inference_mode():
                new = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=limit,
                                     do_sample=False, pad_token_id=0)[0].tolist()[len(ids):]
            said = theirs.decode(new[:-1] if new[-1] == tail else new)
            if ours["text"] != said:
                sys.exit(f"{question}\nours   {ours['text']!r}\ntheirs {said!r}")
            ids += new + [tail] * (new[-1] != tail) + plain_ids(theirs, "\n", specials, [])
            chat, texts = [], []  # the ids have what was before
    print(f"two answers equal those of transformers {transformers.__version__}: {[a['text'] for a in answers]}", flush=True)


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
            compare_questions(rng, name, folder, theirs, jinja, specials, chats)
            print(f"{name}: {len(chats)} conversations with {counted} tokens that count equal transformers {transformers.__version__}", flush=True)


main()
compare_answers()
