"""course_side.py FOLDER: the files of docs/use/course.md, small: rows of WikiText's kind in each format, reviews, and a GPT-2 with
its tokenizer. Writes the tokens and the number of samples that the course's rules give into expected.json.

    course_side.py FOLDER check MODEL: the exported model agrees with the reviews."""
import json
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel

FOLDER = sys.argv[1]
SEQ = 32


def at(*names):
    return os.path.join(FOLDER, *names)


def wikitext():
    rng = random.Random(1)
    words = ["The", "cat", "SAT", "on", "a", "MAT", "\u00c9t\u00e9", "\u0130", "=", "@-@", ",", "."] + ["w%d" % i for i in range(40)]
    rows = {}
    for split, n in (("train", 60), ("validation", 12), ("test", 12)):
        rows[split] = [rng.choice(["", " = Title = \n", " ".join(rng.choices(words, k=rng.randrange(1, 30))) + " \n"]) for _ in range(n)]
    rows["test"].append("unknownword cat\x1csat\u2003on")
    os.makedirs(at("wikitext"))
    for split, texts in rows.items():
        pq.write_table(pa.table({"text": texts}), at("wikitext", split + "-00000-of-00001.parquet"))
    train = pa.table({"text": rows["train"]})
    with pa.ipc.new_stream(at("wikitext", "wikitext-train.arrow"), train.schema) as w:
        w.write_table(train, max_chunksize=10)
    datasets.Dataset(train).save_to_disk(at("wikitext", "saved"))
    raw = pa.table({"text_data": pa.array([t.encode() for t in rows["train"]], type=pa.binary()),
                    "label": pa.array([i % 3 for i in range(len(train))], type=pa.uint16())})
    with pa.ipc.new_file(at("course.arrow"), raw.schema) as w:
        w.write_table(raw, max_chunksize=1)
    with h5py.File(at("course.h5"), "w") as f:
        texts = f.create_dataset("train/texts", (len(train),), dtype=h5py.vlen_dtype(np.uint8))
        for i, t in enumerate(rows["train"]):
            texts[i] = np.frombuffer(t.encode(), np.uint8)
        f["train/targets"] = np.array([i % 3 for i in range(len(train))], dtype=np.int16)
    split = {name: " ".join(texts).lower().split() for name, texts in rows.items()}
    vocab = {word: i for i, word in enumerate(sorted(set(split["train"])))}
    ids = {name: [vocab[w] for w in words if w in vocab] for name, words in split.items()}
    labelled = sum(1 for t in rows["train"] if t)
    with open(at("expected.json"), "w") as f:
        json.dump({"tokens": len(ids["train"]), "vocab": len(vocab), "ids": ids["train"], "samples": len(ids["train"]) - SEQ,
                   "labelled": labelled}, f)


def reviews():
    rng = random.Random(2)
    os.makedirs(at("imdb"))
    for split, n in (("train", 400), ("test", 64)):
        labels = [rng.randrange(2) for _ in range(n)]
        texts = ["a film " + " ".join(rng.choice([["dull", "bad", "poor"], ["great", "good", "fine"]][label] if rng.random() < 0.7 else ["of", "and"])
                                      for _ in range(rng.randrange(3, 60))) for label in labels]
        pq.write_table(pa.table({"text": texts, "label": pa.array(labels, type=pa.int64())}), at("imdb", split + "-00000-of-00001.parquet"))
    return pq.read_table(at("imdb", "train-00000-of-00001.parquet")).to_pydict()


def gpt2(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    torch.manual_seed(1)
    end = t.token_to_id("<|endoftext|>")
    GPT2LMHeadModel(GPT2Config(vocab_size=t.get_vocab_size(), n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=end,
                               eos_token_id=end)).save_pretrained(at("gpt2"))
    t.save(at("gpt2", "tokenizer.json"))


def check(folder):
    """Pads the reviews as the course's collator does, and counts the classes that are right."""
    t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.config.pad_token_id == t.token_to_id("<|endoftext|>"), model.config
    rows = pq.read_table(at("imdb", "test-00000-of-00001.parquet")).to_pydict()
    ids = [t.encode(text).ids[:64] for text in rows["text"]]
    batch = torch.tensor([i + [model.config.pad_token_id] * (64 - len(i)) for i in ids])
    with torch.no_grad():
        done = model(batch, labels=torch.tensor(rows["label"]))
    right = (done.logits.argmax(-1) == torch.tensor(rows["label"])).float().mean().item()
    print("loss %.9g, right %.3f" % (done.loss.item(), right))


if len(sys.argv) == 4:
    check(sys.argv[3])
else:
    wikitext()
    gpt2(reviews()["text"])
