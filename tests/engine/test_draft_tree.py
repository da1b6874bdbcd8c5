"""DraftTree: depths and ancestors follow from the parents; padding sees itself only."""

import torch

from eagle_lab.engine.draft_tree import DraftTree


def test_ancestor_matrix_of_the_example_in_the_header():
    tree = DraftTree.build(torch.tensor([[7, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1]]), max_depth=2)
    assert tree.ancestors[0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 0, 1],
    ]
    assert tree.depths.tolist() == [[0, 1, 1, 2]]


def test_padding_attends_to_itself_and_nothing_sees_it():
    tree = DraftTree.chain(
        torch.tensor([5, 5]), torch.tensor([[1, 2], [1, 0]]), counts=torch.tensor([2, 1])
    )
    assert tree.valid.tolist() == [[True, True, True], [True, True, False]]
    assert tree.ancestors[1].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert tree.num_nodes().tolist() == [2, 1]


def test_random_trees_against_a_walk_up_the_parents():
    generator = torch.Generator().manual_seed(0)
    num_columns = 60
    parents = torch.stack(
        [torch.zeros(5, dtype=torch.long)]
        + [torch.randint(0, column, (5,), generator=generator) for column in range(1, num_columns)],
        dim=1,
    )
    tree = DraftTree.build(torch.zeros_like(parents), parents, max_depth=num_columns)
    for row in range(5):
        for column in range(num_columns):
            path, node = {column}, column
            while node != 0:
                node = int(parents[row, node])
                path.add(node)
            assert set(tree.ancestors[row, column].nonzero().flatten().tolist()) == path
            assert tree.depths[row, column] == len(path) - 1


def test_root_only_is_one_column():
    tree = DraftTree.root_only(torch.tensor([3, 4]))
    assert tree.tokens.tolist() == [[3], [4]]
    assert tree.num_nodes().tolist() == [0, 0]
    built = DraftTree.build(torch.tensor([[3], [4]]), torch.zeros(2, 1).long(), max_depth=0)
    for name, value in vars(built).items():
        ours = getattr(tree, name)
        assert torch.equal(ours, value) if isinstance(value, torch.Tensor) else ours == value


def test_equal_siblings_of_joined_branches_are_one_node():
    tree = DraftTree.from_branches(torch.tensor([9, 8]), [[[1, 2, 3], [1, 2, 4], [5]], [[1]]])
    assert tree.tokens.tolist() == [[9, 1, 2, 3, 4, 5], [8, 1, 0, 0, 0, 0]]
    assert tree.parents.tolist()[0] == [0, 0, 1, 2, 2, 0]
    assert tree.valid.int().tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]
    assert tree.max_depth == 3

    empty = DraftTree.from_branches(torch.tensor([9, 8]), [[], [[]]])
    assert (empty.tokens.tolist(), empty.max_depth) == ([[9], [8]], 0)
