"""Which draft tokens the target accepts, and the bonus token that it adds.

`verify` is pure: a tree, the target's logits at every node, a sampling distribution and uniforms
go in, the accepted path and the next token come out. Three cases:

- greedy: at each node the target's token is its argmax, and the nodes that agree with it all the
  way from the root are accepted.
- sampling with chosen children (top-k, copies: point-mass proposals): the same with one uniform for
  each depth; a walk draws at the nodes it comes to. Accepting a chosen child x this way has
  probability p(x) and leaves the target's distribution without the rejected children, the recursive
  rule for point masses. At the same uniforms the text is the one of plain decoding.
- sampling with drawn children (`draft_probs`): accept with min(1, p(x) / q(x)), else continue with
  norm(max(0, p - q)) and the next sibling, whose distribution is q without the earlier ones,
  renormalized (Leviathan et al. 2211.17192, algorithm 1; siblings drawn without replacement:
  recursive rejection sampling, Jeon et al. 2402.14160).

Shapes: B rows, N columns, V vocabulary, A path length (max_depth + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.sampling import Purpose, Sampling, Uniforms, draw


@dataclass
class Acceptance:
    """Outcome of one verification.

    Attributes:
        path: [B, A] columns of the root and the accepted nodes, in order; zeros after them.
        num_accepted: [B] accepted drafted tokens, the root not counted.
        tokens: [B, A] accepted drafted tokens, then the bonus token; the rest is meaningless.
    """

    path: Tensor
    num_accepted: Tensor
    tokens: Tensor

    @classmethod
    def along(
        cls, tree: DraftTree, path: Tensor, num_accepted: Tensor, bonus_token: Tensor
    ) -> Acceptance:
        """Outcome of keeping `path` of `tree` and adding the target's `bonus_token` [B]."""
        drafted = tree.tokens.gather(1, path[:, 1:])
        tokens = torch.cat([drafted, bonus_token[:, None]], dim=1)
        tokens.scatter_(1, num_accepted[:, None], bonus_token[:, None])
        return cls(path, num_accepted, tokens)

    @property
    def bonus_token(self) -> Tensor:
        """[B] the bonus token after the path, the next tree's root."""
        return self.tokens.gather(1, self.num_accepted[:, None])[:, 0]

    def select(self, rows: Sequence[int]) -> Acceptance:
        """The chosen rows."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.path.device)
        return Acceptance(self.path[index], self.num_accepted[index], self.tokens[index])


@dataclass
class VerifyUniforms:
    """Uniform numbers in [0, 1) for one verification.

    Attributes:
        target: [B, A] decides the bonus token after a path of each depth.
        accept: [B, N] decides the acceptance of each drawn node.
    """

    target: Tensor
    accept: Tensor

    @classmethod
    def draw(cls, uniforms: Uniforms, tree: DraftTree, root_positions: Tensor) -> VerifyUniforms:
        """Uniforms for `tree`; `root_positions` [B], on the host, are those of `Context`."""
        steps = torch.arange(tree.max_depth + 1)
        places = root_positions[:, None] + 1 + steps
        target = uniforms.draw(places, Purpose.TARGET)[..., 0]
        accept = uniforms.draw(root_positions[:, None], Purpose.ACCEPT, tree.num_columns)[:, 0]
        return cls(target, accept)


def verify(
    tree: DraftTree, logits: Tensor, sampling: Sampling, uniforms: VerifyUniforms | None = None
) -> Acceptance:
    """Accept a path of `tree` under the distribution that `sampling` makes of `logits` [B, N, V].

    `uniforms` may be None for greedy decoding.
    """
    if sampling.greedy:
        return _accept_argmax(tree, _argmax(logits))
    if uniforms is None:
        raise ValueError("sampling needs uniforms")
    if tree.draft_probs is None:
        return _follow_target(tree, logits, sampling, uniforms)
    return _reject_drawn(tree, sampling.probs(logits), tree.draft_probs, uniforms)


def _argmax(logits: Tensor) -> Tensor:
    """[B, N] best tokens of `logits` [B, N, V], the first of equals."""
    if logits.is_cpu and logits.dtype is torch.float32:  # where NumPy is ten times as fast
        return torch.from_numpy(logits.detach().numpy().argmax(-1))
    return logits.argmax(-1)


def _accept_argmax(tree: DraftTree, target_tokens: Tensor) -> Acceptance:
    """Accept every node that, like all its ancestors, is the argmax after its parent.

    Siblings are distinct, so these nodes are one path. `target_tokens` [B, N].
    """
    agrees = tree.candidates & (tree.tokens == target_tokens.gather(1, tree.parents))
    agrees[:, 0] = True
    accepted = ~(tree.ancestors & ~agrees[:, None]).any(2)
    num_accepted = accepted.sum(1) - 1
    columns = accepted * torch.arange(tree.num_columns, device=accepted.device)
    path = columns.new_zeros(len(accepted), tree.max_depth + 1)
    path.scatter_add_(1, tree.depths.clamp(max=tree.max_depth), columns)
    bonus_token = target_tokens.gather(1, path.gather(1, num_accepted[:, None]))
    return Acceptance.along(tree, path, num_accepted, bonus_token[:, 0])


def _follow_target(
    tree: DraftTree, logits: Tensor, sampling: Sampling, uniforms: VerifyUniforms
) -> Acceptance:
    """Draw the target's token and follow the child that equals it, until there is none."""
    rows = torch.arange(len(tree.tokens), device=tree.tokens.device)
    node = torch.zeros_like(rows)
    num_accepted, bonus_token = torch.zeros_like(node), torch.zeros_like(node)
    walking = torch.ones_like(node, dtype=torch.bool)
    path = [node]
    for depth in range(tree.max_depth + 1):
        token = draw(sampling.probs(logits[rows, node]), uniforms.target[:, depth])
        bonus_token = torch.where(walking, token, bonus_token)
        children = tree.candidates & (tree.parents == node[:, None])
        match = children & (tree.tokens == token[:, None])
        walking = walking & match.any(1)
        node = torch.where(walking, match.int().argmax(1), node)
        num_accepted = num_accepted + walking
        path.append(torch.where(walking, node, 0))
    return Acceptance.along(tree, torch.stack(path[:-1], dim=1), num_accepted, bonus_token)


def _reject_drawn(
    tree: DraftTree, target_probs: Tensor, draft_probs: Tensor, uniforms: VerifyUniforms
) -> Acceptance:
    """Recursive rejection over siblings drawn without replacement.

    Columns list parents before children and siblings in the order of their draw, so one pass over
    the columns meets each decision once: a node is at stake exactly when its parent is the node
    the walk stands on.
    """
    rows = torch.arange(len(tree.tokens), device=tree.tokens.device)
    node = torch.zeros_like(rows)
    num_accepted = torch.zeros_like(rows)
    residual, proposal = target_probs[:, 0].clone(), draft_probs[:, 0].clone()
    path = torch.zeros(len(rows), tree.max_depth + 1, dtype=torch.long, device=rows.device)
    for column in range(1, tree.num_columns):
        token = tree.tokens[:, column]
        at_stake = tree.candidates[:, column] & (tree.parents[:, column] == node)
        p, q = residual[rows, token], proposal[rows, token]
        left = _normalize((residual - proposal).clamp(min=0))
        exhausted = left.sum(-1) == 0  # p <= q everywhere: nothing else to draw from
        left = torch.where(exhausted[:, None], residual, left)
        wins = (uniforms.accept[:, column] * q < p) | exhausted
        accepted = at_stake & (p > 0) & wins
        rejected = at_stake & ~accepted

        node = torch.where(accepted, column, node)
        num_accepted = num_accepted + accepted
        path[rows, num_accepted] = node
        others = _normalize(proposal.scatter(1, token[:, None], 0.0))
        residual = torch.where(rejected[:, None], left, residual)
        proposal = torch.where(rejected[:, None], others, proposal)
        residual = torch.where(accepted[:, None], target_probs[:, column], residual)
        proposal = torch.where(accepted[:, None], draft_probs[:, column], proposal)
    bonus_token = draw(residual, uniforms.target[rows, num_accepted])
    return Acceptance.along(tree, path, num_accepted, bonus_token)


def _normalize(weights: Tensor) -> Tensor:
    """`weights` [B, V] divided by their sum; zeros stay zeros."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
