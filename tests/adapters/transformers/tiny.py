"""A tiny model with random weights, its tokenizer, and a brake with which a test decides when each token is made."""

from __future__ import annotations

import asyncio
import threading

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, PreTrainedTokenizerFast

DEADLINE = 60
SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = [*SPECIAL, *(f"w{number}" for number in range(253))]
PROMPT = "w200 w201 w202"


def make_tokenizer():
    core = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


def make_model(kind=LlamaForCausalLM, config=LlamaConfig, **more):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return kind(config(vocab_size=len(WORDS), max_position_embeddings=512, **{**sizes, **ids, **more})).eval()


def first_words(count):
    return " ".join(f"w{number}" for number in range(1, count + 1))


class Brake(LogitsProcessor):
    """Makes the model say w1, w2 and so on; each word waits until the test allows it."""

    def __init__(self, allowed=0):
        self.asked = 0
        """How many words the model has begun to make."""
        self._allowed = allowed
        self._changed = threading.Condition()

    def __call__(self, input_ids, scores):
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.asked <= self._allowed, DEADLINE)
        word = torch.full_like(scores, -torch.inf)
        word[:, WORDS.index(f"w{self.asked}")] = 0
        return word

    def release(self, count=1000):
        """Allow more words."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def wait_for(self, number):
        """Wait until the model is making a word."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.asked >= number, DEADLINE)

    async def making(self, number):
        """Wait until the model is making a word; the ones before it are allowed."""
        self.release(number - 1 - self._allowed)
        await asyncio.to_thread(self.wait_for, number)
