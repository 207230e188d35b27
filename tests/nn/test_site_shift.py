"""The headline: statistics per site undo an unknown isometry of all cells of a site; shared statistics do not."""

import pytest
import torch

pytest.importorskip("sklearn")

from benchmarks.complex_domains import site_scores


@pytest.mark.slow
def test_statistics_per_site_survive_a_shift_that_shared_ones_do_not() -> None:
    """Five seeds of the easy clutter task, shift of magnitude one."""
    torch.set_num_threads(1)
    scores = [site_scores("1", seed) for seed in range(5)]

    def average(method: str) -> float:
        return sum(s[method] for s in scores) / len(scores)

    assert average("Siegel network, statistics per site") >= 90
    assert average("tangent, logistic, recentred per site") >= 90
    assert average("Siegel network, shared statistics") <= 60
    assert average("tangent, logistic") <= 60
    assert average("Euclidean, logistic") <= 60
