"""Prompts that the target writes itself: given the header of a user message, it writes the rest.

Such prompts lie where the target's own training put them, with no list of topics behind them
(Xu et al. 2024, "Magpie", section 2.1). Texts that are cut off, too short, said before or not
printable are left out, and so is every turn of the builtin bench questions.

    questions = list(islice(self_written_prompts(target, seed=0), 1000))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question, builtin_prompts, load_questions
from eagle_lab.data.sources import SELF_WRITTEN
from eagle_lab.data.training_prompts import comparable
from eagle_lab.decoding.loop import decode
from eagle_lab.decoding.vanilla import Vanilla
from eagle_lab.errors import UserError
from eagle_lab.models.target import Target
from eagle_lab.sampling import Sampling, row_key

CATEGORY = SELF_WRITTEN
MIN_LETTERS = 12
MAX_FRUITLESS = 20  # batches in a row without a usable prompt
DIVERSE = Sampling(temperature=1.0, top_p=0.95)


def self_written_prompts(
    target: Target,
    seed: int = 0,
    *,
    after: Sequence[Question] = (),
    batch_size: int = 64,
    max_new_tokens: int = 256,
    sampling: Sampling = DIVERSE,
) -> Iterator[Question]:
    """An endless sequence of one-turn prompts, the same for one seed whatever the batch size.

    Args:
        target: an instruct model.
        seed: of the coins.
        after: the sequence so far, to go on behind it.
        batch_size: texts written at the same time.
        max_new_tokens: a longer text counts as cut off.
        sampling: the law of the texts; greedy would write the same one for ever.

    Raises:
        UserError: the target writes nothing usable for a long while.
    """
    header = ChatTemplate(target.tokenizer).encode_user_header()
    bench = [question for name in builtin_prompts() for question in load_questions(name)]
    seen = {comparable(turn) for question in [*bench, *after] for turn in question.turns}
    number = 1 + int(str(after[-1].question_id).rpartition("-")[2]) if after else 0
    num_fruitless = 0
    while num_fruitless < MAX_FRUITLESS:
        names = [f"self-{seed}-{number + row}" for row in range(batch_size)]
        number += batch_size
        num_fruitless += 1
        texts = decode(
            target,
            Vanilla(),
            [header] * batch_size,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            row_keys=[row_key(seed, name, 0, 0) for name in names],
        )
        for name, written in zip(names, texts, strict=True):
            if written.finished_by != "eos":
                continue
            text = str(target.tokenizer.decode(written.tokens[:-1])).strip()
            if usable(text, target.tokenizer.all_special_tokens) and comparable(text) not in seen:
                seen.add(comparable(text))
                num_fruitless = 0
                yield Question(name, CATEGORY, (text,))
    raise UserError(
        f"'{target.name}' wrote {MAX_FRUITLESS * batch_size} texts in a row of which none can be "
        "a prompt; use data.prompts=training"
    )


def usable(text: str, special_tokens: list[str]) -> bool:
    """Whether a text can be a prompt: some letters, nothing unprintable, no control token."""
    return (
        sum(character.isalpha() for character in text) >= MIN_LETTERS
        and all(character.isprintable() or character in "\n\t" for character in text)
        and "\ufffd" not in text
        and not any(token in text for token in special_tokens)
    )
