"""Digits, trees and image folders."""

from pathlib import Path

import pytest
import torch

from manifoldnorm.datasets.digits import digit_splits, digits
from manifoldnorm.datasets.images import image_folder, split_images, turn_randomly
from manifoldnorm.datasets.trees import balanced_tree, tree_observations

pytest.importorskip("sklearn")


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = digits()
    reference = load_digits()
    torch.testing.assert_close(images[:, 0] * 16, torch.from_numpy(reference.images).float())
    assert labels.tolist() == reference.target.tolist()
    images.zero_()
    assert float(digits()[0].max()) == 1


def test_splits_are_disjoint_stratified_and_seeded() -> None:
    splits = digit_splits(seed=3)
    parts = (splits.train, splits.validation, splits.test)
    assert sum(len(y) for _, y in parts) == 1797
    for _, y in parts:
        share = y.bincount(minlength=10) / len(y)
        assert float((share - 0.1).abs().max()) < 0.01
        assert len(y[:60].unique()) == 10
    rows = torch.cat([x.flatten(1) for x, _ in parts])
    assert len(torch.unique(rows, dim=0)) == len(torch.unique(digits()[0].flatten(1), dim=0))
    assert torch.equal(digit_splits(seed=3).test[1], splits.test[1])
    assert not torch.equal(digit_splits(seed=4).test[0], splits.test[0])
    with pytest.raises(ValueError, match="together below 1"):
        digit_splits(validation=0.6, test=0.5)
    with pytest.raises(ValueError, match="class 'b' has 1 images"):
        split_images(torch.zeros(21, 1, 2, 2), torch.tensor([0] * 20 + [1]), ("a", "b"), validation=0.2, test=0.2)


def test_random_turns_are_exact_and_of_all_kinds() -> None:
    image = torch.arange(9.0).view(1, 1, 3, 3)
    turned = turn_randomly(image.expand(200, 1, 3, 3), torch.Generator().manual_seed(0))
    kinds = torch.unique(turned.flatten(1), dim=0)
    assert len(kinds) == 4
    expected = torch.stack([torch.rot90(image[0, 0], k) for k in range(4)])
    assert torch.equal(kinds, torch.unique(expected.flatten(1), dim=0))
    with pytest.raises(ValueError, match="square"):
        turn_randomly(torch.zeros(1, 1, 2, 3))


def test_image_folder(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
        (tmp_path / name).mkdir()
        for i, size in enumerate(((20, 10), (9, 13))):
            pillow.new("RGB", size, colour).save(tmp_path / name / f"{i}.png")
    images, labels, classes = image_folder(tmp_path, side=8)
    assert images.shape == (4, 3, 8, 8)
    assert classes == ("cat", "dog")
    assert labels.tolist() == [0, 0, 1, 1]
    assert images[0, :, 4, 4].tolist() == [1, 0, 0]
    assert images[3, :, 4, 4].tolist() == [0, 0, 1]
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"notes\.txt is not an image"):
        image_folder(tmp_path, side=8)
    with pytest.raises(ValueError, match="one subfolder of images per class"):
        image_folder(tmp_path / "missing", side=8)


def test_tree_distances_and_observations() -> None:
    """Distances count edges; observations of leaves that part late are closer."""
    tree = balanced_tree(3, 3)
    assert len(tree.parents) == 40
    distances = tree.distances()
    assert torch.equal(distances, distances.mT)
    assert float(distances.max()) == 6
    assert float(distances[0, 39]) == 3
    assert tree.leaves.tolist() == list(range(13, 40))
    x, y = tree_observations(tree, 20, size=200, noise=0.01, generator=torch.Generator().manual_seed(0))
    means = torch.stack([x[y == leaf].mean(0) for leaf in range(27)])
    between = torch.cdist(means, means)
    assert float(between[0, 1:3].max()) < float(between[0, 3:9].min()) < float(between[0, 9:].min())
    with pytest.raises(ValueError, match="branching"):
        balanced_tree(0, 2)
    with pytest.raises(ValueError, match="noise"):
        tree_observations(tree, 1, size=2, noise=-1.0)
