"""The project's own eighty questions."""

from __future__ import annotations

from collections import Counter

from eagle_lab.data.prompts import load_questions

CATEGORIES = "writing roleplay reasoning math coding extraction stem humanities".split()


def test_eight_categories_of_ten_with_two_turns() -> None:
    questions = load_questions("bench80")
    assert Counter(question.category for question in questions) == dict.fromkeys(CATEGORIES, 10)
    assert [question.question_id for question in questions] == list(range(1, 81))
    assert all(len(question.turns) == 2 for question in questions)
    assert len({turn for question in questions for turn in question.turns}) == 160


def test_the_texts_are_clean() -> None:
    for question in load_questions("bench80"):
        for turn in question.turns:
            assert turn == turn.strip()
            assert turn.count("```") % 2 == 0
            assert all(character.isprintable() or character == "\n" for character in turn)


def test_every_python_snippet_compiles() -> None:
    snippets = [
        turn.split("```python\n")[1].split("```")[0]
        for question in load_questions("bench80")
        for turn in question.turns
        if "```python" in turn
    ]
    assert len(snippets) == 4
    for snippet in snippets:
        compile(snippet, "snippet", "exec")


def test_a_quarter_of_the_questions_bring_their_own_text() -> None:
    grounded = [question for question in load_questions("bench80") if "\n" in question.turns[0]]
    assert len(grounded) >= 20
    assert sum(question.category == "extraction" for question in grounded) == 10
