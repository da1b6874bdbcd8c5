"""The target: any Hugging Face causal language model, scoring trees and handing out features.

    target = Target(model, tokenizer)
    cache = target.new_cache(len(prompts))
    target.prefill(prompts, cache)
    target.score(tree, cache)                 # logits and features at every column

The model's code runs unchanged except for attention: its layers write keys and values into a
`TreeCache` and attend through the current `TreePass`. So one implementation serves every
architecture that uses the attention interface of transformers. Passes hand out features by name
(`features`): `top`, which costs nothing, and those that `hand_out` adds. Knows no method and no
drafter.

Shapes: B rows, N columns, T prompt tokens, H hidden width, F feature width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.errors import UserError, choose
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu.ops import linear, suits
from eagle_lab.targets.cpu.patch import plain_layers, use_fast_decoder, use_fast_layers
from eagle_lab.targets.cuda.graphs import VerifyGraphs
from eagle_lab.targets.features import (
    FUSED,
    TOP,
    captured_inputs,
    check_feature_layers,
    check_names,
    default_feature_layers,
)
from eagle_lab.targets.fingerprint import fingerprint_of
from eagle_lab.targets.tree_pass import TreePass, use_tree_attention

ATTENTIONS = ("auto", "sdpa", "split")


class Target:
    """A causal language model with its tokenizer.

    Attributes:
        graphs: what scores trees by CUDA graphs; None launches every kernel.

    Args:
        model: a `PreTrainedModel` for causal language modelling, in evaluation mode.
        tokenizer: its tokenizer.
        name: what reports call it.
        feature_layers: ids of the layers that `fused` features join; None for EAGLE-3's rule.
        fast_layers: whether linear layers, norms and attention run through the CPU kernels
            (`cpu.patch`); None where there are any, on a CPU in float32.
        attention: `sdpa` attends to the whole cache under one mask; `split` to the committed
            prefix without a mask and to the tree, and merges both (`attention`); `auto` takes
            that of the fast layers, else splits where a flash kernel serves (`cuda.flash`), else
            takes `sdpa`.

    Raises:
        UserError: if the model does not use the attention interface of transformers, if its head
            does more than a linear map with soft-cap or scale, if `feature_layers` are not
            strictly increasing within 1 ... num_layers - 1, or if there are no fast layers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "target",
        feature_layers: Sequence[int] | None = None,
        fast_layers: bool | None = None,
        attention: str = "auto",
    ):
        self.attention = choose(attention, ATTENTIONS, "attention")
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.hidden_size: int = self.config.hidden_size
        self.num_layers: int = self.config.num_hidden_layers
        self.embedding: nn.Module = model.get_input_embeddings()
        self.head_weight: Tensor = model.get_output_embeddings().weight
        self.head_bias: Tensor | None = model.get_output_embeddings().bias
        self.vocab_size: int = self.head_weight.shape[0]
        self.context_length: int = self.config.max_position_embeddings
        self.eos_ids: frozenset[int] = _eos_ids(model)
        self.feature_names: tuple[str, ...] = (TOP,)
        self._feature_layers = (
            None
            if feature_layers is None
            else check_feature_layers(feature_layers, self.num_layers)
        )
        self.graphs: VerifyGraphs | None = None
        self._decoder = model.get_decoder()
        use_tree_attention(model)
        suited = suits(self.device, self.dtype)
        if fast_layers and not suited:
            raise UserError(
                f"fast_layers=true with device={self.device.type} and dtype={self.dtype}: they "
                "need device=cpu and dtype=float32; use fast_layers=auto"
            )
        self.fast_layers = suited if fast_layers is None else fast_layers
        if self.fast_layers:
            use_fast_layers(model)
            use_fast_decoder(self._decoder)
        self._check_head()

    @contextlib.contextmanager
    def plain_layers(self) -> Iterator[None]:
        """The model's layers and head as Hugging Face ships them, until the block ends.

        Attention is plain for caches made inside the block.
        """
        usual = self.fast_layers, self.attention
        self.fast_layers, self.attention = False, "sdpa"
        try:
            with plain_layers(self.model):
                yield
        finally:
            self.fast_layers, self.attention = usual

    def hand_out(self, names: Iterable[str]) -> None:
        """Let passes hand out the features of these names, beside those that they do already.

        Raises:
            UserError: an unknown name, or too few layers for EAGLE-3's rule.
        """
        before = self.feature_names
        self.feature_names = check_names([*before, *names], "feature")
        if FUSED in self.feature_names and self._feature_layers is None:
            self._feature_layers = default_feature_layers(self.num_layers)
        if self.graphs is not None and self.feature_names != before:
            self.graphs = VerifyGraphs(self, self.graphs.capture)  # a graph never hands out more

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Ids of the layers that are captured for `fused`; none where it is not handed out."""
        return self._feature_layers or () if FUSED in self.feature_names else ()

    def feature_width(self, name: str) -> int:
        """F of a feature that passes hand out."""
        return self.hidden_size * (len(self.feature_layers) if name == FUSED else 1)

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Soft-cap or scale that the model applies after its linear head."""
        if softcap := getattr(self.config, "final_logit_softcapping", None):
            logits = softcap * torch.tanh(logits / softcap)
        if divisor := getattr(self.config, "logits_scaling", None):
            logits = logits / divisor
        if factor := getattr(self.config, "logit_scale", None):
            logits = logits * factor
        return logits

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of post-norm states [..., H]."""
        multiply = linear if self.fast_layers else nn.functional.linear
        hidden = hidden.to(self.head_weight.dtype)
        return self.scale_logits(multiply(hidden, self.head_weight, self.head_bias))

    def new_cache(self, num_rows: int, num_layers: int | None = None) -> TreeCache:
        """An empty cache for `num_rows` rows, of the model's layers or (a drafter's) `num_layers`.

        Passes over it attend the way this target does.
        """
        fast = self.fast_layers and self.attention == "auto"
        num_layers = self.num_layers if num_layers is None else num_layers
        return TreeCache(num_layers, num_rows, self.device, fast=fast, attention=self.attention)

    @torch.no_grad()
    def extend(self, tokens: Tensor, counts: Tensor, cache: TreeCache) -> Scores:
        """Append `tokens` [B, T], the first `counts` [B] of each row, and commit them.

        Returns logits [B, 1, V] after each row's last token and features [B, T, F] (those
        after `counts` are meaningless).
        """
        batch, num_tokens = tokens.shape
        steps = torch.arange(num_tokens, device=tokens.device)
        visible = (steps[:, None] >= steps).expand(batch, -1, -1)
        tree_pass = TreePass(cache, cache.lengths[:, None] + steps, visible)
        hidden, features = self._forward(tokens, tree_pass)
        # Of a single token each row takes all there is
        cache.advance(counts, cache.max_length + 1 if num_tokens == 1 else None)
        last = hidden[torch.arange(batch, device=tokens.device), counts - 1]
        return Scores(self.head(last)[:, None], features)

    def prefill(self, prompts: Sequence[Sequence[int]], cache: TreeCache) -> Scores:
        """Read whole prompts into an empty cache; see `extend`."""
        counts = torch.tensor([len(prompt) for prompt in prompts])
        tokens = torch.zeros(len(prompts), int(counts.max()), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        return self.extend(tokens.to(self.device), counts.to(self.device), cache)

    @torch.no_grad()
    def score(self, tree: DraftTree, cache: TreeCache) -> Scores:
        """Logits and features at every column of `tree`, nothing committed."""
        if self.graphs is not None:
            return Scores(*self.graphs.score(tree, cache))
        positions = cache.lengths[:, None] + tree.depths
        tree_pass = TreePass(cache, positions, tree.ancestors)
        return Scores(*self.logits_and_features(tree.tokens, tree_pass))

    def logits_and_features(
        self, tokens: Tensor, tree_pass: TreePass
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits [B, N, V] and features [B, N, F] of one pass over `tokens` [B, N]."""
        hidden, features = self._forward(tokens, tree_pass)
        return self.head(hidden), features

    def _forward(self, tokens: Tensor, tree_pass: TreePass) -> tuple[Tensor, dict[str, Tensor]]:
        """Post-norm states [B, N, H] and features [B, N, F]."""
        with captured_inputs(self._decoder.layers, self.feature_layers) as captured:
            hidden = self._decoder(
                input_ids=tokens,
                position_ids=tree_pass.positions,
                use_cache=False,
                tree_pass=tree_pass,
            ).last_hidden_state
        features = {TOP: hidden}
        if captured:
            features[FUSED] = torch.cat(captured, dim=-1)
        return hidden, features

    @torch.no_grad()
    def _check_head(self) -> None:
        """Prove on one token that `head` over the feature is the model's own output."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        visible = torch.ones(1, 1, 1, dtype=torch.bool, device=self.device)
        arguments: dict[str, Any] = {"input_ids": token, "position_ids": token, "use_cache": False}
        expected = self.model(
            **arguments, tree_pass=TreePass(self.new_cache(1), token, visible)
        ).logits.float()
        hidden, _ = self._forward(token, TreePass(self.new_cache(1), token, visible))
        ours = self.head(hidden).float()
        tolerance = 1e-4 if self.dtype == torch.float32 else 0.1
        allowed = tolerance * expected.abs().max()
        if expected.shape != ours.shape or (expected - ours).abs().max() > allowed:
            raise UserError(
                f"the output head of {type(self.model).__name__} is not its LM head with a "
                "soft-cap or scale; such a model cannot be a target"
            )

    @cached_property
    def fingerprint(self) -> str:
        """Which weights these are, see `fingerprint_of`."""
        return fingerprint_of(self.model, self.config)


def _eos_ids(model: Any) -> frozenset[int]:
    """All ids that end a row, from the generation config or else the model config."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
