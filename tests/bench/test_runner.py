"""The runner asks all methods the same and counts what they did, on a real model and loop."""

from __future__ import annotations

import dataclasses

import pytest

from eagle_lab.bench import runner
from eagle_lab.bench.results import evaluate
from eagle_lab.bench.runner import Bench
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import UserError
from eagle_lab.methods.build import Method
from eagle_lab.methods.draft_model import SelfSpeculation
from eagle_lab.methods.lookahead import Lookahead
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.targets.cuda.graphs import CacheGraphs, VerifyGraphs
from tests.bench.fakes import QUESTIONS, oracle, tiny_target, vanilla, vanilla_rows
from tests.targets.test_graphs import CallCapture

NEW = 12
SETTINGS = BenchSettings(max_new_tokens=NEW, timing=False)


def bench(*methods, settings=SETTINGS, questions=QUESTIONS):
    return Bench(tiny_target(), [vanilla(), *methods], questions, settings)


def of(rows, name):
    return [row for row in rows if row["method"] == name]


@pytest.fixture
def undisturbed(monkeypatch):
    """A machine on which nothing ever stalls."""
    monkeypatch.setattr(runner, "disturbed", lambda cycles, others: 0)


def counting(monkeypatch):
    """Let every call of decode() leave a note: (proposer, prompts, most tokens)."""
    calls = []
    real = runner.decode

    def decode(target, proposer, prompts, **options):
        calls.append((proposer, [len(prompt) for prompt in prompts], options["max_new_tokens"]))
        return real(target, proposer, prompts, **options)

    monkeypatch.setattr(runner, "decode", decode)
    return calls


def test_drafts_that_are_never_always_and_sometimes_right():
    never, always = oracle("never", [0], NEW), oracle("always", [4], NEW)
    sometimes = oracle("sometimes", [2, 0, 4], NEW)
    methods = [vanilla(), never, always, sometimes]
    rows = bench(never, always, sometimes).run()
    results = evaluate(tiny_target(), methods, rows, SETTINGS)
    tau = {line["method"]: line["tau_micro"] for line in results.summary}
    assert tau["vanilla"] == tau["never"] == 1.0
    assert tau["always"] == pytest.approx(11 / 3)  # cycles emit 5, 5 and the last 1 of 11
    assert tau["sometimes"] == pytest.approx(11 / 4)  # 3, 1, 5, 2
    assert {line["greedy_match_rate"] for line in results.summary} == {1.0}
    assert results.divergences == []


def test_three_cycles_accepting_2_0_4_on_the_real_loop():
    settings = dataclasses.replace(SETTINGS, max_new_tokens=10)
    rows = of(bench(oracle("sometimes", [2, 0, 4], 10), settings=settings).run(), "sometimes")
    for row in rows:
        assert row["accepted_lengths"] == [2, 0, 4]
        assert len(row["tokens"]) == 1 + 9


def test_the_limit_cuts_accepted_drafts():
    """max_new_tokens = 2 with three accepted drafts: exactly two tokens, one of them drafted."""
    settings = dataclasses.replace(SETTINGS, max_new_tokens=2)
    for row in of(bench(oracle("always", [3], 2), settings=settings).run(), "always"):
        assert len(row["tokens"]) == 2
        assert (row["accepted_lengths"], row["emitted_lengths"]) == ([1], [1])


def test_end_of_sequence_inside_an_accepted_path_ends_the_row(monkeypatch):
    settings = dataclasses.replace(SETTINGS, turns=1)
    text = vanilla_rows(NEW)[0]["tokens"]
    end = next(token for token in text[2:4] if token not in text[:2])
    place = text.index(end)
    always = oracle("always", [4], NEW)
    monkeypatch.setattr(tiny_target(), "eos_ids", frozenset({end}))
    rows = bench(always, settings=settings, questions=QUESTIONS[:1]).run()
    for row in rows:
        assert row["tokens"] == text[: place + 1]
        assert row["finished_by"] == "eos"
        assert sum(row["emitted_lengths"]) == place


def test_tokens_are_counted_as_emitted_not_from_the_text():
    """Random bytes do not survive decoding and encoding; the counts must not go that way."""
    rows = vanilla_rows(24)
    tokenizer = tiny_target().tokenizer
    again = [len(tokenizer(row["text"], add_special_tokens=False)["input_ids"]) for row in rows]
    assert again != [24] * len(rows)
    assert [len(row["tokens"]) for row in rows] == [24] * len(rows)


def test_turn_two_holds_vanillas_answer_for_everybody(monkeypatch):
    """A lossy method whose own answers differ is asked vanilla's second prompt all the same."""
    real = runner.decode
    liar = oracle("liar", [4], NEW)
    liar.proposer.lossless = False

    def decode(target, proposer, prompts, **options):
        generations = real(target, vanilla().proposer, prompts, **options)
        if proposer is liar.proposer:
            for generation in generations:
                generation.tokens = [token - 1 for token in generation.tokens]
        return generations

    monkeypatch.setattr(runner, "decode", decode)
    rows = bench(liar).run()
    plain, other = of(rows, "vanilla"), of(rows, "liar")
    assert [row["prompt_tokens"] for row in plain] == [row["prompt_tokens"] for row in other]
    assert [row["tokens"] for row in plain] != [row["tokens"] for row in other]
    first, second = plain[0], plain[1]
    chat = QUESTIONS[0].conversation([first["text"]])
    assert second["prompt_tokens"] == ChatTemplate(tiny_target().tokenizer).encode(chat)
    results = evaluate(tiny_target(), [vanilla(), liar], rows, SETTINGS)
    assert results.summary[1]["greedy_match_rate"] is None


def test_every_method_question_turn_and_repeat_has_its_row():
    settings = dataclasses.replace(SETTINGS, repeats=2, batch_size=2)
    seen = []
    rows = bench(oracle("always", [4], NEW), settings=settings).run(write=seen.append)
    keys = [(r["method"], r["question_id"], r["turn"], r["repeat"]) for r in rows]
    assert len(keys) == len(set(keys)) == 2 * 3 * 2 * 2
    assert seen == rows
    contract = "method question_id category turn repeat prompt_tokens tokens text accepted_lengths"
    assert {*contract.split(), "prefill_s", "decode_s"} <= set(rows[0])
    assert {(row["turn"], row["repeat"]) for row in rows} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_a_question_without_a_second_turn_leaves_the_batch():
    questions = (Question(1, "a", ("x", "y")), Question(2, "a", ("z",)))
    settings = dataclasses.replace(SETTINGS, batch_size=2)
    rows = bench(settings=settings, questions=questions).run()
    assert [(row["question_id"], row["turn"]) for row in rows] == [(1, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_depend_neither_on_neighbours_nor_on_order(temperature):
    settings = dataclasses.replace(SETTINGS, sampling=Sampling(temperature), repeats=2)
    alone = bench(settings=settings).run()
    together = bench(
        Method("other", PromptLookup()),
        settings=dataclasses.replace(settings, batch_size=3),
        questions=QUESTIONS[::-1],
    ).run()

    def texts(rows):
        rows = of(rows, "vanilla")
        return {(r["question_id"], r["turn"], r["repeat"]): r["tokens"] for r in rows}

    assert texts(alone) == texts(together)


def test_one_seed_gives_one_text_and_another_gives_another():
    def texts(seed):
        sampled = dataclasses.replace(SETTINGS, sampling=Sampling(1.0), seed=seed, repeats=2)
        return [row["tokens"] for row in bench(settings=sampled).run()]

    first = texts(0)
    assert first == texts(0)
    assert first != texts(1)
    half = len(first) // 2
    assert first[:half] != first[half:]  # repeats toss uniforms of their own


def test_a_bench_goes_on_where_it_stopped(monkeypatch):
    settings = dataclasses.replace(SETTINGS, batch_size=2)
    always = oracle("always", [4], NEW)
    whole = bench(always, settings=settings).run()
    calls = counting(monkeypatch)
    written = []
    again = bench(always, settings=settings).run(whole[:5], written.append)
    assert [row["tokens"] for row in again] == [row["tokens"] for row in whole]
    assert len(written) == len(whole) - 5
    assert len(calls) == 6  # of 8: the first two batches are there, half of the third
    del calls[:]
    bench(always, settings=dataclasses.replace(settings, timing=True)).run(whole)
    assert calls == []  # nothing left, so no warm-up either


def test_rows_of_other_prompts_are_not_gone_on_from():
    rows = bench().run()
    rows[0] = rows[0] | {"prompt_tokens": [1, 2, 3]}
    with pytest.raises(RuntimeError, match="question 1, turn 1"):
        bench().run(rows)


def test_methods_take_turns_at_going_first():
    rows = bench(oracle("always", [4], NEW), oracle("never", [0], NEW)).run()
    order = [row["method"] for row in rows]
    firsts = order[::3]
    assert set(firsts) == {"vanilla", "always", "never"}
    for start in range(0, len(order), 3):
        assert set(order[start : start + 3]) == {"vanilla", "always", "never"}


def test_warm_up_covers_short_and_long_prompts_and_is_not_counted(monkeypatch, undisturbed):
    calls = counting(monkeypatch)
    settings = dataclasses.replace(SETTINGS, timing=True, warmup=3)
    rows = bench(oracle("never", [0], NEW), settings=settings).run()
    warm = calls[: 2 * 3]
    lengths = sorted({sizes[0] for _, sizes, _ in warm})
    first_turns = sorted(
        len(row["prompt_tokens"]) for row in of(rows, "vanilla") if row["turn"] == 1
    )
    assert lengths == first_turns
    assert len(calls) == 6 + len(rows)
    assert all(row["decode_s"] > 0 for row in rows)


def test_without_timing_no_row_has_a_time(monkeypatch):
    calls = counting(monkeypatch)
    rows = bench().run()
    assert len(calls) == len(rows)
    assert all(row["prefill_s"] is None and row["cycle_s"] is None for row in rows)


def test_a_lookup_that_finds_nothing_is_a_cycle_that_accepts_nothing():
    lookup = Method("prompt_lookup", PromptLookup(n_min=9, n_max=9))
    for row in of(bench(lookup).run(), "prompt_lookup"):
        assert row["accepted_lengths"] == [0] * (NEW - 1)
        assert row["num_drafted"] == 0


@pytest.mark.parametrize(("temperature", "least"), [(0.0, 1.0), (1.0, 0.95)])
def test_a_target_that_drafts_for_itself_is_always_right(temperature, least):
    settings = dataclasses.replace(SETTINGS, sampling=Sampling(temperature), batch_size=3)
    control = Method("self_speculation", SelfSpeculation(tiny_target(), num_draft_tokens=3))
    rows = of(bench(control, settings=settings).run(), "self_speculation")
    whole = sum(n == 3 for row in rows for n in row["accepted_lengths"][:-1])
    assert whole >= least * sum(len(row["accepted_lengths"]) - 1 for row in rows)


def test_a_prompt_that_does_not_fit_stops_everything_first(monkeypatch):
    calls = counting(monkeypatch)
    long = Question("q7", "math", ("word " * 1000, "and?"))
    with pytest.raises(UserError, match=r"q7.*2048"):
        bench(questions=(*QUESTIONS, long))
    assert calls == []


def test_later_turns_must_fit_with_full_answers_before_them():
    """The second prompt is short, but 1020 tokens of an answer stand before it."""
    settings = dataclasses.replace(SETTINGS, max_new_tokens=1020)
    with pytest.raises(UserError, match="question 1\\b"):
        bench(settings=settings, questions=QUESTIONS[:1])
    bench(settings=dataclasses.replace(settings, turns=1), questions=QUESTIONS[:1])


def test_infeasible_methods_are_left_out_of_the_run():
    impossible = Method("some", num_nodes=9, infeasible="pool of 2")
    rows = bench(impossible).run()
    assert {row["method"] for row in rows} == {"vanilla"}
    summary = evaluate(tiny_target(), [vanilla(), impossible], rows, SETTINGS).summary
    assert [line["status"] for line in summary] == ["ok", "infeasible"]


def test_a_bench_without_vanilla_or_with_twins_is_refused():
    with pytest.raises(ValueError, match="vanilla"):
        Bench(tiny_target(), [Method("x", PromptLookup())], QUESTIONS, SETTINGS)
    with pytest.raises(UserError, match="vanilla, x, x"):
        bench(Method("x", PromptLookup()), Method("x", PromptLookup()))


def test_what_cannot_read_the_longest_text_is_infeasible_before_anything_runs():
    prompts = [
        ChatTemplate(tiny_target().tokenizer).encode(question.conversation([""]))
        for question in QUESTIONS
    ]
    longest = max(map(len, prompts)) + 2 * NEW  # turn 2, with two full answers
    drafts = {"proposer": PromptLookup(), "num_nodes": 10}
    long_enough = Method("fits", context_length=longest + 10, **drafts)
    too_short = Method("short", context_length=longest + 9, **drafts)
    made = bench(long_enough, too_short)
    assert [method.name for method in made.runnable] == ["vanilla", "fits"]
    reason = made.methods[2].infeasible
    assert f"{longest + 9}" in reason and f"{longest + 10}" in reason
    assert {row["method"] for row in made.run()} == {"vanilla", "fits"}


@pytest.mark.parametrize("change", [{"turns": 0}, {"batch_size": 0}, {"warmup": -1}])
def test_impossible_settings_name_their_key(change):
    with pytest.raises(UserError, match=f"eval.{next(iter(change))}="):
        dataclasses.replace(SETTINGS, **change)


def test_peak_memory_is_a_plausible_number():
    assert 50 < bench().run()[0]["peak_memory_mb"] < 100_000


def test_memory_that_graphs_keep_is_no_methods_peak(monkeypatch):
    our_bench = bench()
    graphs = VerifyGraphs(our_bench.target, CallCapture())
    monkeypatch.setattr(our_bench.target, "graphs", graphs)
    assert {row["peak_memory_mb"] for row in our_bench.run()} == {None}


@pytest.mark.parametrize("timing", [True, False])
def test_what_was_timed_while_graphs_were_captured_is_decoded_again(
    monkeypatch, undisturbed, timing
):
    """Each row has its times from a call that captured nothing; untimed rows need none."""
    calls = []
    real = runner.decode

    def capturing_once(*arguments, **options):
        calls.append(options["row_keys"])
        monkeypatch.setattr(CacheGraphs, "num_captures", 1)
        return real(*arguments, **options)

    monkeypatch.setattr(CacheGraphs, "num_captures", 0)
    monkeypatch.setattr(runner, "decode", capturing_once)
    settings = dataclasses.replace(SETTINGS, turns=1, warmup=0, timing=timing)
    rows = bench(settings=settings).run()
    assert len(calls) == len(rows) + timing
    assert (calls[0] == calls[1]) == timing


def clocked(monkeypatch, stalls):
    """Cycles take 10 ms by the clock, but for one of 30 s in each of the calls `stalls`."""
    calls = []
    real = runner.decode

    def decode(*arguments, **options):
        made = real(*arguments, **options)
        for one in made:
            one.cycle_s = [0.01] * len(one.cycle_s)
            one.cycle_s[2] = 30.0 if len(calls) in stalls else 0.01
            one.prefill_s, one.decode_s = 0.01, sum(one.cycle_s)
        calls.append(options["row_keys"])
        return made

    monkeypatch.setattr(runner, "decode", decode)
    return calls


@pytest.mark.parametrize(("stalls", "num_disturbed"), [((), 0), ((3,), 1), ((3, 4), 2)])
def test_a_turn_with_a_stall_is_measured_again_once(monkeypatch, stalls, num_disturbed):
    methods = [vanilla(), oracle("always", [4], NEW)]
    calls = clocked(monkeypatch, stalls)
    settings = dataclasses.replace(SETTINGS, timing=True, warmup=0, turns=1)
    rows = Bench(tiny_target(), methods, QUESTIONS, settings).run()
    assert len(calls) == len(rows) + bool(stalls)
    if stalls:
        assert calls[3] == calls[4]
    again = [row for row in rows if row["num_replaced"]]
    assert [row["num_replaced"] for row in again] == [1] * bool(stalls)
    assert sum(max(row["cycle_s"]) > 1 for row in rows) == (stalls == (3, 4))
    summary = evaluate(tiny_target(), methods, rows, settings).summary
    assert sum(line["num_disturbed"] for line in summary) == num_disturbed
    for line in summary:
        robust = pytest.approx(line["speedup_robust"])
        assert (line["speedup"] == robust) or (stalls == (3, 4) and line["method"] == "always")


def test_a_second_measurement_with_another_text_does_not_count(monkeypatch):
    calls = clocked(monkeypatch, (2,))
    real = runner.decode

    def changing(*arguments, **options):
        made = real(*arguments, **options)
        if len(calls) == 4:
            made[0].tokens = made[0].tokens[::-1]
        return made

    monkeypatch.setattr(runner, "decode", changing)
    settings = dataclasses.replace(SETTINGS, timing=True, warmup=0, turns=1)
    rows = bench(settings=settings).run()
    assert [row["num_replaced"] for row in rows] == [0, 0, 0]
    assert max(rows[2]["cycle_s"]) == 30.0


def test_untimed_methods_share_what_the_target_read(monkeypatch):
    """One reading of each batch's prompts, and the texts and counts of methods that read alone."""
    target, read = tiny_target(), []
    prefill = target.prefill
    monkeypatch.setattr(
        target, "prefill", lambda prompts, cache: read.append(1) or prefill(prompts, cache)
    )
    settings = dataclasses.replace(SETTINGS, batch_size=3)
    methods = [
        vanilla(),
        Method("prompt_lookup", PromptLookup(), num_nodes=10),
        Method("lookahead", Lookahead(), num_nodes=28),
    ]
    bench = Bench(target, methods, QUESTIONS, settings)
    rows = bench.run()
    assert len(read) == len(bench.batches)
    for row in rows[: 3 * len(methods)]:
        [method] = [method for method in methods if method.name == row["method"]]
        [alone] = decode(target, method.proposer, [row["prompt_tokens"]], max_new_tokens=NEW)
        assert (alone.tokens, alone.accepted_lengths) == (row["tokens"], row["accepted_lengths"])
