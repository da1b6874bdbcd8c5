"""Generation from Python in a few lines, whole answers or a stream of bursts.

    import eagle_lab
    target = eagle_lab.load_target("smollm2_135m")
    for answer in eagle_lab.generate(target, None, ["Why is the sky blue?"]):
        print(answer.text, answer.tau)

None is the drafter that comes with the package for this target; "runs/train/drafter" would be one
of your own.

Knows no configuration; `engine.loop.decode` is the engine underneath.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_lab.data.chat import ChatTemplate
from eagle_lab.drafters.base import Drafter
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.drafters.folder import drafter_folder
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Proposer
from eagle_lab.engine.record import Generation
from eagle_lab.engine.sampling import Sampling, row_key
from eagle_lab.errors import UserError
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.sizes import sizes_for
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Answer:
    """One prompt's answer.

    Attributes:
        text: the answer, control tokens left out.
        tau: tokens per target pass after the first token (1.0 is standard decoding).
        generation: token ids, accepted lengths and timings.
    """

    text: str
    tau: float
    generation: Generation


def generate(
    target: Target | str,
    drafter: Drafter | str | Path | None,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    proposer: Proposer | None = None,
    on_text: Callable[[int, str], None] | None = None,
) -> list[Answer]:
    """Answer prompts as one batch, with exactly the target's own distribution.

    Args:
        target: a loaded target, or a name that `load_target` knows.
        drafter: a drafter attached to the target, its folder, or the name of one that comes with
            the package; None takes the package's own for this target.
        prompts: a user message, a chat (a list of {"role", "content"}), or a list of such.
        max_new_tokens: most tokens of an answer.
        temperature: 0 is greedy.
        top_p: see `Sampling`.
        top_k: see `Sampling`.
        seed: of the sampled text; the same seed gives the same text.
        proposer: any method instead of the dynamic tree (EAGLE-2's on a GPU, a
            small one on a CPU), such as `Vanilla()`; then no drafter is looked for.
        on_text: called with (prompt index, new text) as it arrives.

    Raises:
        UserError: an unknown target, a drafter that does not fit, none for this target in the
            package, a prompt beyond the context.
    """
    target = load_target(target) if isinstance(target, str) else target
    chats = _chats(prompts)
    template = ChatTemplate(target.tokenizer)
    texts = [_GrowingText(target) for _ in chats]

    def pass_on(row: int, tokens: list[int]) -> None:
        piece = texts[row].add(tokens)
        if on_text is not None and piece:
            on_text(row, piece)

    generations = decode(
        target,
        proposer or default_proposer(target, drafter),
        [template.encode(chat) for chat in chats],
        sampling=Sampling(temperature, top_p, top_k),
        max_new_tokens=max_new_tokens,
        row_keys=[row_key(seed, row, 0, 0) for row in range(len(chats))],
        on_tokens=pass_on,
    )
    for row, text in enumerate(texts):
        if on_text is not None and (rest := text.rest()):
            on_text(row, rest)
    return [
        Answer(text.whole(), _tau(generation), generation)
        for text, generation in zip(texts, generations, strict=True)
    ]


def stream(
    target: Target | str, drafter: Drafter | str | Path | None, prompt: Prompt, **options: object
) -> Iterator[str]:
    """Yield one prompt's answer in the bursts in which the cycles emit it.

    Options are those of `generate`. A consumer that stops early ends the decoding with its
    current cycle.
    """
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    stopped = threading.Event()

    def put(_row: int, text: str) -> None:
        if stopped.is_set():
            raise _Stopped
        pieces.put(text)

    def work() -> None:
        try:
            generate(target, drafter, prompt, on_text=put, **options)  # type: ignore[arg-type]
            pieces.put(None)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the consumer's thread
            pieces.put(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        stopped.set()
        worker.join()


def default_proposer(target: Target, drafter: Drafter | str | Path | None) -> Proposer:
    """A dynamic tree (EAGLE-2) with this drafter, of a size that pays on the target's device."""
    if not isinstance(drafter, Drafter):
        drafter, _ = load_drafter(
            drafter_folder(drafter, target), target, rounded=target.fast_layers
        )
    sizes = sizes_for(target.device)
    return EagleDynamic(
        target, drafter, depth=sizes.depth, width=sizes.width, num_nodes=sizes.num_nodes
    )


class _Stopped(Exception):
    """The consumer of a stream went away."""


class _GrowingText:
    """Text of tokens that arrive in bursts; a character is out when all its bytes are there."""

    def __init__(self, target: Target):
        self._target = target
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, tokens: list[int]) -> str:
        """The text that the new tokens complete."""
        self._tokens += tokens
        return "" if self.whole().endswith("\N{REPLACEMENT CHARACTER}") else self.rest()

    def rest(self) -> str:
        """What has not been out yet, whole or not."""
        text = self.whole()
        piece = text[len(self._shown) :]
        self._shown = text
        return piece

    def whole(self) -> str:
        """All text so far, control tokens left out."""
        return str(self._target.tokenizer.decode(self._tokens, skip_special_tokens=True))


def _chats(prompts: Prompt | Sequence[Prompt]) -> list[list[Mapping[str, str]]]:
    """Every form of `prompts` as a list of chats."""
    one = isinstance(prompts, str) or (prompts and isinstance(prompts[0], Mapping))
    several: Sequence[Any] = [prompts] if one else prompts
    for prompt in several:
        if not isinstance(prompt, str | Sequence):
            raise UserError(f"prompt {prompt!r}: it must be a text or a list of messages")
    return [
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        for prompt in several
    ]


def _tau(generation: Generation) -> float:
    cycles = len(generation.emitted_lengths)
    return sum(generation.emitted_lengths) / cycles if cycles else 1.0
