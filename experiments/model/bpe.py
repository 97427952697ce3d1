"""Train a byte-level BPE tokenizer on the corpus and encode the corpus with it.

python bpe.py train CORPUS MODEL_DIR --vocab 8192
python bpe.py encode CORPUS MODEL_DIR TOKENS.xz [--chars 400000]
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|end_of_document|>"
PIECE_CHARS = 40_000
SAMPLE_CHARS = 600_000


def pieces(text: str, size: int = PIECE_CHARS) -> Iterator[str]:
    """Cut a document before `# file:` lines into pieces of about `size` characters."""
    start = 0
    while start < len(text):
        cut = text.find("\n# file: ", start + size)
        cut = len(text) if cut < 0 else cut + 1
        yield text[start:cut]
        start = cut


def train(corpus: Path, target: Path, vocab: int) -> None:
    """Train on the first part of each training package and write the tokenizer files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = (path.read_text()[:SAMPLE_CHARS] for path in sorted((corpus / "train").glob("*.txt")))
    tokenizer.train_from_iterator(sample, trainer)
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"), pretty=False)
    write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "model_max_length": 135_168,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(target / "generation_config.json", {"eos_token_id": 0, "do_sample": False})


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def encode(corpus: Path, model: Path, target: Path, chars: int | None) -> None:
    """Write all training documents as one xz stream of little-endian uint16 ids.

    Each document ends with the end-of-document token, id 0. `chars` limits each document.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    rows: list[np.ndarray] = []
    for path in sorted((corpus / "train").glob("*.txt")):
        encoded = tokenizer.encode_batch_fast(list(pieces(path.read_text()[:chars])))
        rows += [np.asarray(piece.ids, np.uint16) for piece in encoded]
        rows.append(np.zeros(1, np.uint16))
    tokens = np.concatenate(rows)
    print(f"{len(tokens):,} tokens")
    filters = [
        {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 256 << 20, "lc": 0, "lp": 1, "pb": 1}
    ]
    with lzma.open(target, "wb", filters=filters) as stream:
        stream.write(tokens.astype("<u2").tobytes())
    print(f"{target.stat().st_size:,} bytes")


def read_tokens(path: Path) -> np.ndarray:
    """Read what `encode` wrote."""
    with lzma.open(path, "rb") as stream:
        return np.frombuffer(stream.read(), "<u2")


def main() -> None:
    """Parse the command line and run one step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["train", "encode"])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--chars", type=int, help="encode only so much of each document")
    args = parser.parse_args()
    if args.step == "train":
        train(args.corpus, args.model, args.vocab)
    else:
        encode(args.corpus, args.model, args.target, args.chars)


if __name__ == "__main__":
    main()
