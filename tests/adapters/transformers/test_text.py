"""The text of a generation is that of its tokens, however they are cut."""

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import stoppable
from stoppable.adapters.transformers.text import PartialText

from .tiny import make_tokenizer


def bytes_tokenizer():
    """Return a tokenizer that has a token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", clean_up_tokenization_spaces=False)


def pieces_of(tokenizer, tokens):
    """Return the partial after each token, and at the end."""

    def agent():
        text, pieces = PartialText(tokenizer), []
        for token in tokens:
            text.add([token])
            pieces.append(stoppable.current_run().partial or "")
        text.end()
        return [*pieces, stoppable.current_run().partial or ""]

    return stoppable.run(agent)


def test_a_character_of_several_tokens_arrives_when_it_is_complete():
    tokenizer = bytes_tokenizer()
    tokens = tokenizer("é €!")["input_ids"]
    assert pieces_of(tokenizer, tokens) == ["", "é", "é ", "é ", "é ", "é €", "é €!", "é €!"]


def test_a_character_that_is_never_completed_is_there_at_the_end():
    tokenizer = bytes_tokenizer()
    tokens = tokenizer("a€")["input_ids"][:-1]
    assert pieces_of(tokenizer, tokens)[-2:] == ["a", "a\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("between", ["</s>", "</s> </s>"])
def test_special_tokens_are_left_out_and_take_no_space_with_them(between):
    tokenizer = make_tokenizer()
    tokens = tokenizer(f"w1 w2 {between} w3")["input_ids"]
    assert pieces_of(tokenizer, tokens)[-1] == "w1 w2 w3" == tokenizer.decode(tokens, skip_special_tokens=True)
