"""Where there is no GPU, kernels are interpreted and tests marked `gpu` are skipped, with a count."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # The interpreter is chosen when a kernel is decorated, so before any variant is imported.
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("COLUMNS", None)  # a narrow table breaks the words that tests look for


def pytest_configure() -> None:
    """One line instead of every test's own failure, where kernels would be interpreted and cannot be."""
    from common import interpreter
    from common.errors import UnsupportedTriton

    if not torch.cuda.is_available():
        try:
            interpreter.require_interpreter()
        except UnsupportedTriton as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture
def device() -> str:
    """Where kernels run in this process."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="never skip tests marked gpu: without a GPU they fail")


def pytest_report_header() -> str:
    if torch.cuda.is_available():
        return f"GPU: {torch.cuda.get_device_name()}"
    return "GPU: none, kernels run in Triton's interpreter and tests marked gpu are skipped"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() or config.getoption("--gpu"):
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
