"""Runs that pages are made of: trained once, and copied where a test changes them."""

import shutil

import pytest
from report.pages import ask_everything, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("page") / "run")


@pytest.fixture(scope="session")
def asked(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked") / "run"
    shutil.copytree(trained, folder)
    ask_everything(folder)
    return folder


@pytest.fixture
def bare(trained, tmp_path):
    """A run without influence, which a test may change."""
    return shutil.copytree(trained, tmp_path / "bare")


@pytest.fixture
def run(asked, tmp_path):
    """A run with all kinds of influence, which a test may change."""
    return shutil.copytree(asked, tmp_path / "run")
