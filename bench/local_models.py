"""What a guarded local model costs per token, beside the same model as it is.

`make bench-local-models` calls it. The models have random weights: what they say costs the same. They run on one
thread of a CPU, and the CPU time of that thread counts, which other processes change little.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TextIteratorStreamer

import stoppable
from machine import facts
from stoppable.adapters.transformers import guard
from table import Row, Section, Target, against, as_markdown, as_text, summary

RESULTS = Path(__file__).parents[1] / "bench/results/local-models.md"
TOKENS = 32
ROUNDS = 10
FLOOR = "generate, no run (floor)"
LIMIT = Target(limit=1.05)
METHOD = (
    f"Written by `make bench-local-models`. CPU time for each of {TOKENS} tokens after a prompt of one, greedy; the"
    f" least of {ROUNDS} rounds, in which all take turns. Models of the shape of Llama with random weights, in float32"
    " on one thread of the CPU. A model that people use is larger and makes a token in longer, also on a GPU; what the"
    " adapter adds to a token stays the same."
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and of pairs of them, as GPT-2's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first in alphabet for second in alphabet][:31_744]
    words = [*alphabet, *(f"{first}{second}" for first, second in pairs)]
    core = Tokenizer(BPE(vocab={word: number for number, word in enumerate(words)}, merges=pairs))
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def make_model(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> LlamaForCausalLM:
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=width // 64, eos_token_id=None, **sizes)
    return LlamaForCausalLM(config).eval()


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of CPU time that a token takes."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / TOKENS / 1e6


def contenders(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> dict[str, Callable[[], float]]:
    prompt = {"input_ids": torch.tensor([[5]]), "attention_mask": torch.tensor([[1]])}
    plain, stops, records = (make_model(tokenizer, layers, width) for _ in range(3))
    guard(stops)
    guard(records, tokenizer)

    def generate(model: LlamaForCausalLM, *, streamed: bool = False) -> float:
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True) if streamed else None
        options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
        return timed(lambda: model.generate(**prompt, **options, streamer=streamer))

    return {
        FLOOR: lambda: generate(plain),
        "guard(model), in a run": lambda: stoppable.run(generate, stops),
        "guard(model, tokenizer), in a run": lambda: stoppable.run(generate, records),
        "guard(model, tokenizer), outside of a run": lambda: generate(records),
        "with a TextIteratorStreamer, no run": lambda: generate(plain, streamed=True),
        "guard(model, tokenizer) and a TextIteratorStreamer, in a run": lambda: stoppable.run(
            partial(generate, records, streamed=True)
        ),
    }


def measure(tokenizer: PreTrainedTokenizerFast, layers: int, width: int) -> Section:
    named = contenders(tokenizer, layers, width)
    best = dict.fromkeys(named, float("inf"))
    order, turns = random.Random(0), list(named)
    for _ in range(ROUNDS + 1):
        order.shuffle(turns)
        for name in turns:
            best[name] = min(best[name], named[name]())
    floor = best.pop(FLOOR)
    rows = [Row(name=FLOOR, value=floor, unit="ms", ratio=1.0)]
    for name, value in best.items():
        beside = best["with a TextIteratorStreamer, no run"] if "and a Text" in name else floor
        rows.append(against(beside, name, value, unit="ms", target=LIMIT if "guard" in name else None))
    millions = sum(each.numel() for each in make_model(tokenizer, layers, width).parameters()) / 1e6
    notes = ["with a streamer, × floor is beside the streamer without the adapter"]
    return Section(title=f"A token of a model with {millions:.0f} million parameters", rows=rows, notes=notes)


def main() -> None:
    torch.set_num_threads(1)
    described = facts(["stoppable", "transformers", "torch"])
    tokenizer = make_tokenizer()
    sections = [measure(tokenizer, layers, width) for layers, width in ((4, 256), (12, 512))]
    last_line = summary("local-models", sections)
    title = "Local models, guarded and as they are, measured"
    RESULTS.write_text(as_markdown(title, METHOD, described, sections, last_line))
    print(*map(as_text, sections), last_line, sep="\n\n")


if __name__ == "__main__":
    main()
