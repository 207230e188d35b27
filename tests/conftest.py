"""Shared set-up: one thread a worker, a fixed seed for every test, golden files, derandomised hypothesis."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"

torch.set_num_threads(1)
settings.register_profile("manifoldnorm", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manifoldnorm")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1234)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
