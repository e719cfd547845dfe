"""A stop ends a generation at the next token, and keeps the text; a plain call may finish after a graceful stop."""

from __future__ import annotations

import asyncio
import copy
import functools
import threading

import pytest
import torch
from transformers import (
    AsyncTextIteratorStreamer,
    LlamaForCausalLM,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    pipeline,
)
from transformers.generation.streamers import BaseStreamer

import stoppable
from stoppable.adapters.transformers import guard
from stoppable.testing import assert_stops_everywhere

from .tiny import DEADLINE, PROMPT, WORDS, Brake, first_words, make_model, make_tokenizer

NAME = "llm:LlamaForCausalLM"


class Pieces(BaseStreamer):
    """A streamer of the user."""

    def __init__(self):
        self.count = 0
        self.ends = 0

    def put(self, value):
        self.count += 1

    def end(self):
        self.ends += 1


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def model(tokenizer):
    return guard(make_model(), tokenizer)


def call_of(model, tokenizer, brake, prompts=(PROMPT,), length=50, **options):
    """Return a call of ``generate``."""
    inputs = tokenizer(list(prompts), return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": length, "do_sample": False, **options}
    return functools.partial(model.generate, **inputs, logits_processor=[brake], **options)


async def stop_at(call, brake, number, mode="graceful", **options):
    """Stop a call while the model makes a word; return the run, and the receipt that the stop gets."""
    handle = await stoppable.spawn(call)
    await brake.making(number)
    receipt = await handle.stop(mode, **options)
    brake.release()
    async with asyncio.timeout(DEADLINE):
        await handle.outcome()
    return handle, receipt


def fates_of(handle):
    return [entry.fate for entry in handle.run.receipt.entries if entry.kind == "llm"]


@pytest.mark.parametrize("mode", ["graceful", "immediate", "kill"])
async def test_a_streamed_generation_ends_with_the_token_that_is_being_made(model, tokenizer, mode):
    brake, streamer = Brake(), Pieces()
    handle, receipt = await stop_at(call_of(model, tokenizer, brake, streamer=streamer), brake, 4, mode)
    outcome = await handle.outcome()
    assert receipt.in_flight == (NAME,)
    assert (outcome.status, outcome.partial) == ("stopped", first_words(4))
    assert fates_of(handle) == ["closed"]
    assert (brake.asked, streamer.count, streamer.ends) == (4, 5, 1)  # the prompt, and four tokens


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_an_immediate_stop_ends_any_generation_with_the_token_that_is_being_made(model, tokenizer, mode):
    brake = Brake()
    handle, receipt = await stop_at(call_of(model, tokenizer, brake), brake, 4, mode)
    outcome = await handle.outcome()
    assert receipt.in_flight == (NAME,)
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(4), 4)
    assert fates_of(handle) == ["interrupted"]


async def test_a_graceful_stop_lets_a_plain_call_finish_and_keeps_its_answer(model, tokenizer):
    brake = Brake()
    handle, receipt = await stop_at(call_of(model, tokenizer, brake, length=9), brake, 4)
    outcome = await handle.outcome()
    assert receipt.in_flight == (NAME,)
    assert (outcome.status, brake.asked, fates_of(handle)) == ("completed", 9, ["finished"])
    assert tokenizer.decode(outcome.result[0], skip_special_tokens=True) == f"{PROMPT} {first_words(9)}"
    assert outcome.partial == first_words(9)


async def test_after_a_graceful_stop_no_other_generation_begins(model, tokenizer):
    brake, second = Brake(), Brake(allowed=1000)

    def agent():
        call_of(model, tokenizer, brake, length=9)()
        call_of(model, tokenizer, second)()

    handle, _ = await stop_at(agent, brake, 4)
    outcome = await handle.outcome()
    assert (outcome.status, brake.asked, second.asked) == ("stopped", 9, 0)
    assert outcome.partial == first_words(9)


async def test_a_second_press_ends_a_call_that_was_finishing(model, tokenizer):
    brake = Brake()
    handle = await stoppable.spawn(call_of(model, tokenizer, brake))
    await brake.making(4)
    await handle.stop()
    await brake.making(7)
    await handle.stop("immediate")
    brake.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(7), 7)
    assert fates_of(handle) == ["interrupted"]


async def test_the_end_of_the_grace_ends_a_call_that_was_finishing(model, tokenizer):
    brake = Brake()
    interrupted = threading.Event()

    def agent():
        stoppable.on_interrupt(interrupted.set)
        call_of(model, tokenizer, brake)()

    handle = await stoppable.spawn(agent)
    await brake.making(4)
    await handle.stop(grace=0)
    assert await asyncio.to_thread(interrupted.wait, DEADLINE)
    while handle.run.outcome is None and brake.asked < 50:
        brake.release(1)
        await asyncio.sleep(0.001)  # the hook of the generation is called on another thread than the one above
    outcome = await handle.outcome()
    assert (outcome.status, fates_of(handle)) == ("stopped", ["interrupted"])
    assert outcome.partial == first_words(brake.asked)


async def test_finish_false_ends_a_plain_call_with_the_token_that_is_being_made(tokenizer):
    model, brake = guard(make_model(), tokenizer, finish=False), Brake()
    handle, _ = await stop_at(call_of(model, tokenizer, brake), brake, 4)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(4), 4)
    assert fates_of(handle) == ["closed"]


async def test_finish_true_lets_a_streamed_generation_finish(tokenizer):
    model, brake = guard(make_model(), tokenizer, finish=True), Brake()
    handle, _ = await stop_at(call_of(model, tokenizer, brake, length=9, streamer=Pieces()), brake, 4)
    assert ((await handle.outcome()).status, brake.asked, fates_of(handle)) == ("completed", 9, ["finished"])


async def test_a_stop_before_the_first_forward_pass_costs_one_token(model, tokenizer):
    """The prompt is processed in one step, which a criterion cannot end."""
    brake, began, go_on = Brake(allowed=1000), threading.Event(), threading.Event()

    def hold(*_):
        began.set()
        assert go_on.wait(DEADLINE)

    with model.model.register_forward_pre_hook(hold):
        handle = await stoppable.spawn(call_of(model, tokenizer, brake, streamer=Pieces()))
        assert await asyncio.to_thread(began.wait, DEADLINE)
        await handle.stop()
        go_on.set()
        assert (await handle.outcome()).status == "stopped"
    assert brake.asked == 1


async def test_a_call_that_was_stopped_before_it_began_makes_nothing_and_its_reader_goes_on(model, tokenizer):
    brake, began, go_on, streamer = Brake(allowed=1000), threading.Event(), threading.Event(), Pieces()

    def agent():
        began.set()
        assert go_on.wait(DEADLINE)
        call_of(model, tokenizer, brake, streamer=streamer)()

    handle = await stoppable.spawn(agent)
    assert await asyncio.to_thread(began.wait, DEADLINE)
    await handle.stop()
    go_on.set()
    assert (await handle.outcome()).status == "stopped"
    assert (brake.asked, streamer.count, streamer.ends) == (0, 0, 1)


# Threads


async def test_a_generation_on_a_thread_ends_and_so_does_the_loop_that_reads_it(model, tokenizer):
    brake, read = Brake(), []

    def agent():
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        thread = threading.Thread(target=call_of(model, tokenizer, brake, streamer=streamer))
        thread.start()
        read.extend(streamer)
        thread.join()
        return "".join(read)

    handle, receipt = await stop_at(agent, brake, 4)
    outcome = await handle.outcome()
    assert NAME in receipt.in_flight
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(4), 4)
    assert ("".join(read), outcome.result) == (first_words(4), first_words(4))
    assert fates_of(handle) == ["closed"]


async def test_a_thread_that_begins_after_the_stop_generates_nothing_and_its_reader_goes_on(model, tokenizer):
    brake, began, go_on, ended = Brake(allowed=1000), threading.Event(), threading.Event(), []

    def agent():
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        generate = call_of(model, tokenizer, brake, streamer=streamer)

        def late():
            began.set()
            assert go_on.wait(DEADLINE)
            generate()

        thread = threading.Thread(target=late)
        thread.start()
        ended.append("".join(streamer))
        thread.join()

    handle = await stoppable.spawn(agent)
    assert await asyncio.to_thread(began.wait, DEADLINE)
    await handle.stop()
    go_on.set()
    async with asyncio.timeout(DEADLINE):
        assert (await handle.outcome()).status == "stopped"
    assert (ended, brake.asked) == ([""], 0)


async def test_a_task_that_reads_a_generation_on_a_thread_gets_the_text_so_far(model, tokenizer):
    brake, read = Brake(), []

    async def agent():
        streamer = AsyncTextIteratorStreamer(tokenizer, skip_prompt=True)
        thread = threading.Thread(target=call_of(model, tokenizer, brake, streamer=streamer))
        thread.start()
        async for text in streamer:
            read.append(text)
        thread.join()

    handle, receipt = await stop_at(agent, brake, 4)
    outcome = await handle.outcome()
    assert NAME in receipt.in_flight
    assert (outcome.status, outcome.partial, "".join(read)) == ("stopped", first_words(4), first_words(4))
    assert brake.asked == 4


@pytest.mark.parametrize("to_thread", [stoppable.to_thread, asyncio.to_thread])
async def test_a_task_that_awaits_a_plain_call_is_cancelled_and_the_generation_ends(model, tokenizer, to_thread):
    brake = Brake()

    async def agent():
        return await to_thread(call_of(model, tokenizer, brake))

    handle, receipt = await stop_at(agent, brake, 4, "immediate")
    outcome = await handle.outcome()
    assert NAME in receipt.in_flight
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(4), 4)
    assert fates_of(handle) == ["interrupted"]


# What is generated


async def test_a_pipeline_is_guarded_with_its_tokenizer(tokenizer):
    pipe = guard(pipeline("text-generation", model=make_model(), tokenizer=tokenizer), name="tiny")
    brake = Brake(allowed=9)
    options = {"max_new_tokens": 9, "do_sample": False, "return_full_text": False}

    def agent():
        return pipe(PROMPT, logits_processor=[brake], **options)[0]["generated_text"]

    assert agent().strip() == first_words(9)  # outside of a run
    brake = Brake()
    handle, receipt = await stop_at(agent, brake, 4, "immediate")
    assert receipt.in_flight == ("llm:tiny",)
    assert ((await handle.outcome()).partial, brake.asked) == (first_words(4), 4)


@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True}])
async def test_of_a_batch_each_text_is_kept(model, tokenizer, options):
    brake = Brake()
    call = call_of(model, tokenizer, brake, prompts=[PROMPT, "w210 w211 w212"], **options)
    handle, _ = await stop_at(call, brake, 4, "immediate")
    assert (await handle.outcome()).partial == f"{first_words(4)}\n{first_words(4)}\n"
    assert brake.asked == 4


async def test_a_beam_search_ends_with_the_token_that_is_being_made(model, tokenizer):
    brake = Brake()
    handle, _ = await stop_at(call_of(model, tokenizer, brake, num_beams=3), brake, 4, "immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", first_words(4) + "\n", 4)


async def test_of_an_encoder_decoder_the_decoders_text_is_kept(tokenizer):
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 1}
    config = T5Config(vocab_size=len(WORDS), eos_token_id=2, pad_token_id=0, **sizes)
    model, brake = guard(T5ForConditionalGeneration(config).eval(), tokenizer), Brake()
    handle, receipt = await stop_at(call_of(model, tokenizer, brake), brake, 4, "immediate")
    assert receipt.in_flight == ("llm:T5ForConditionalGeneration",)
    assert ((await handle.outcome()).partial, brake.asked) == (first_words(4), 4)


async def test_assisted_generation_ends_with_the_step_and_its_guesses_are_no_text(model, tokenizer):
    """The next tokens are guessed from the prompt, and a step keeps several of them."""
    inputs = tokenizer([" ".join([PROMPT] * 5)], return_tensors="pt", return_token_type_ids=False)
    lengths = {"min_new_tokens": 60, "max_new_tokens": 60}

    def agent():
        result = model.generate(**inputs, **lengths, prompt_lookup_num_tokens=3, do_sample=False)
        return tokenizer.decode(result[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.partial) == ("completed", outcome.result)
    steps, reached, go_on = [], threading.Event(), threading.Event()

    def hold(*_):
        steps.append(1)
        if len(steps) == 4:
            reached.set()
            assert go_on.wait(DEADLINE)

    with model.model.register_forward_pre_hook(hold):
        handle = await stoppable.spawn(agent)
        assert await asyncio.to_thread(reached.wait, DEADLINE)
        await handle.stop("immediate")
        go_on.set()
        partial = (await handle.outcome()).partial
    assert len(steps) == 4
    assert partial
    assert outcome.partial.startswith(partial)
    assert partial != outcome.partial


async def test_the_text_is_there_while_it_is_generated(model, tokenizer):
    brake = Brake()
    handle = await stoppable.spawn(call_of(model, tokenizer, brake))
    await brake.making(6)
    assert handle.run.partial == first_words(4)  # the last one is added with the next
    brake.release()
    assert (await handle.outcome()).partial == first_words(50)


@pytest.mark.parametrize("make_result", [lambda result: {"made": result}, lambda result: result[:, 3:]])
async def test_a_model_may_return_something_else(tokenizer, make_result):
    class Other(LlamaForCausalLM):
        def generate(self, *args, **kwargs):
            return make_result(super().generate(*args, **kwargs))

    model, brake = guard(make_model(Other), tokenizer), Brake()
    handle, receipt = await stop_at(call_of(model, tokenizer, brake), brake, 4, "immediate")
    assert receipt.in_flight == ("llm:Other",)
    assert ((await handle.outcome()).partial, brake.asked) == (first_words(4), 4)


async def test_a_model_that_generates_piece_by_piece_makes_one_token_of_each_that_remains(tokenizer):
    class InParts(LlamaForCausalLM):
        def generate(self, *args, **kwargs):
            return [super(InParts, self).generate(*args, **kwargs) for _ in range(3)][-1]

    model, brake = guard(make_model(InParts)), Brake()
    handle, _ = await stop_at(call_of(model, tokenizer, brake), brake, 4, "immediate")
    assert ((await handle.outcome()).status, brake.asked) == ("stopped", 4 + 2)


async def test_without_a_tokenizer_no_text_is_recorded(tokenizer):
    model, brake = guard(make_model()), Brake()
    handle, _ = await stop_at(call_of(model, tokenizer, brake), brake, 4, "immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, brake.asked) == ("stopped", None, 4)


async def test_in_a_shield_a_generation_finishes(model, tokenizer):
    brake = Brake()

    def agent():
        with stoppable.shielded(DEADLINE):
            return call_of(model, tokenizer, brake, length=9, streamer=Pieces())()

    await stop_at(agent, brake, 4)
    assert brake.asked == 9


async def test_a_child_run_ends_with_the_run_above_it(model, tokenizer):
    brake = Brake()

    async def agent():
        child = await stoppable.spawn(call_of(model, tokenizer, brake), name="child")
        await child.outcome()

    handle, receipt = await stop_at(agent, brake, 4, "immediate")
    assert (await handle.outcome()).status == "stopped"
    assert (receipt.in_flight, brake.asked) == ((NAME,), 4)


async def test_an_error_of_generate_is_as_before(model, tokenizer):
    handle = await stoppable.spawn(call_of(model, tokenizer, Brake(), num_beams=2, streamer=Pieces()))
    outcome = await handle.outcome()
    assert (outcome.status, type(outcome.error)) == ("failed", ValueError)


async def test_an_agent_with_two_generations_stops_everywhere(model, tokenizer):
    def agent():
        for _ in range(2):
            call_of(model, tokenizer, Brake(allowed=5), length=5)()

    await assert_stops_everywhere(agent)


# The model


def test_outside_a_run_a_generation_is_the_same(model, tokenizer):
    calls = []

    class Seen(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            calls.append(input_ids.shape[1])
            return torch.full((input_ids.shape[0],), input_ids.shape[1] == 8, dtype=torch.bool)

    criteria = [Seen()]
    call = call_of(model, tokenizer, Brake(allowed=9), stopping_criteria=criteria)
    assert tokenizer.decode(call()[0]) == f"{PROMPT} {first_words(5)}"
    assert (calls, len(criteria)) == ([4, 5, 6, 7, 8], 1)


def test_criteria_of_the_user_are_kept_and_their_list_is_left_alone(model, tokenizer):
    class Until8(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((input_ids.shape[0],), input_ids.shape[1] == 8, dtype=torch.bool)

    criteria = [Until8()]
    result = stoppable.run(call_of(model, tokenizer, Brake(allowed=9), stopping_criteria=criteria))
    assert (result.shape, len(criteria)) == ((1, 8), 1)


def test_arguments_may_be_positional(model, tokenizer):
    brake = Brake(allowed=9)
    inputs = tokenizer([PROMPT], return_tensors="pt")["input_ids"]

    def agent():
        result = model.generate(inputs, None, [brake], max_new_tokens=5, do_sample=False)
        assert stoppable.current_run().partial == first_words(5)
        return result.shape

    assert stoppable.run(agent) == (1, 8)


async def test_guarding_again_changes_the_settings_and_lists_a_call_once(model, tokenizer):
    brake = Brake()
    assert guard(model, tokenizer, name="first") is guard(model, tokenizer, name="second")
    handle, receipt = await stop_at(call_of(model, tokenizer, brake), brake, 2, "immediate")
    assert receipt.in_flight == ("llm:second",)
    assert ((await handle.outcome()).partial, brake.asked) == (first_words(2), 2)


def test_a_copy_generates_with_its_own_weights(model):
    other = copy.deepcopy(model)
    assert other.generate.__self__ is other
    assert model.generate.__self__ is model


async def test_a_method_that_another_library_has_replaced_is_kept(tokenizer):
    model, brake, seen = make_model(), Brake(), []
    real = model.generate

    def generate(*args, **kwargs):
        seen.append(kwargs["max_new_tokens"])
        return real(*args, **kwargs)

    model.generate = generate
    guard(guard(model, tokenizer), tokenizer)
    await stop_at(call_of(model, tokenizer, brake), brake, 4, "immediate")
    assert (seen, brake.asked) == ([50], 4)


def test_a_model_from_a_folder_has_the_name_of_the_folder(tmp_path, tokenizer):
    make_model().save_pretrained(tmp_path / "tiny")
    model = guard(type(make_model()).from_pretrained(tmp_path / "tiny"), tokenizer)
    seen = []

    def agent():
        hook = model.register_forward_pre_hook(lambda *_: seen.append(stoppable.current_run().in_flight))
        with hook:
            call_of(model, tokenizer, Brake(allowed=1), length=1)()

    stoppable.run(agent)
    assert seen == [("llm:tiny",)]


def test_what_does_not_generate_is_refused():
    with pytest.raises(stoppable.InvalidArgument, match="object does not generate: pass a model or a pipeline"):
        guard(object())
