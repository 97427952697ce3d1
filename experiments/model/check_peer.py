"""Check a checkpoint against `transformers`: logits, drafting, greedy equality.

Loads the folder with `AutoModelForCausalLM`, compares its logits with those of `network.py` in
float32, compares the drafter's first proposal of each round with `Network.draft`, and generates
with and without `use_mtp`. Needs transformers 5.24, which connects the `mellum` MTP keys.

    python check_peer.py MODEL_DIR
"""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

import torch
import torch.nn.functional as F
from checkpoint import load
from network import Network
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.candidate_generator import MTPCandidateGenerator


def proposals(net: Network, tokens: Tensor) -> Tensor:
    """Return the drafter's choice at each cell from 1 to the last of tokens [1, T]."""
    hidden, _ = net.trunk(tokens)
    drafted, _ = net.draft(tokens[:, 1:], hidden[:-1], 1)
    return F.linear(drafted, net.embedding).argmax(-1)


@torch.no_grad()
def check(folder: Path, new_tokens: int) -> None:
    """Print the comparisons and raise at the first difference."""
    net = load(folder)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = inspect.getsource(argparse)[:6000]
    tokens = tokenizer(text, return_tensors="pt").input_ids[:, :512]
    assert tokenizer.decode(tokenizer(text).input_ids) == text, "tokenizer does not round-trip"
    ours = F.linear(net.trunk(tokens)[0], net.embedding)
    gap = (peer(tokens).logits[0] - ours).abs().max().item()
    print(f"largest logit difference over {tokens.shape[1]} positions: {gap:.2e}")
    assert gap < 1e-3, gap

    seen: list[tuple[Tensor, int]] = []
    original = MTPCandidateGenerator.get_candidates

    def spy(self: MTPCandidateGenerator, input_ids: Tensor, *args: object, **kwargs: object):
        result = original(self, input_ids, *args, **kwargs)
        if result[0].shape[1] > input_ids.shape[1]:
            seen.append((input_ids.clone(), int(result[0][0, input_ids.shape[1]])))
        return result

    plain = peer.generate(tokens, do_sample=False, max_new_tokens=new_tokens)
    MTPCandidateGenerator.get_candidates = spy  # type: ignore[method-assign]
    drafted = peer.generate(tokens, do_sample=False, max_new_tokens=new_tokens, use_mtp=True)
    MTPCandidateGenerator.get_candidates = original  # type: ignore[method-assign]
    assert torch.equal(plain, drafted), "generation with the drafter differs from plain"
    same = [int(proposals(net, ids)[-1]) == choice for ids, choice in seen]
    accepted = new_tokens - len(seen) - 1
    print(f"greedy tokens equal; {len(seen)} rounds, about {accepted} drafts accepted")
    print(f"first proposals equal: {sum(same)} of {len(same)}")
    assert all(same), "a proposal differs"
    print(tokenizer.decode(plain[0, 512:]))


def main() -> None:
    """Parse the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    check(args.model, args.new_tokens)


if __name__ == "__main__":
    main()
