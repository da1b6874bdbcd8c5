"""Memory is counted where the system tells, and freed though its holders hold each other."""

from __future__ import annotations

import os
import sys
import weakref

import pytest
import torch

from eagle_lab.bench.memory import free_bytes, give_back, total_bytes

CPU = torch.device("cpu")


def test_some_of_the_memory_is_free():
    assert 0 < free_bytes(CPU) <= total_bytes(CPU) < 2**50


@pytest.mark.parametrize(("known", "expected"), [({"SC_PHYS_PAGES": 5}, 500), ({}, sys.maxsize)])
def test_a_system_that_does_not_tell_what_is_free(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, int], expected: int
):
    """macOS has no SC_AVPHYS_PAGES, Windows no sysconf."""

    def sysconf(name: str) -> int:
        if name not in {**known, "SC_PAGE_SIZE": 100}:
            raise ValueError("unrecognized configuration name")
        return {**known, "SC_PAGE_SIZE": 100}[name]

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert free_bytes(CPU) == expected
    monkeypatch.delattr(os, "sysconf")
    assert free_bytes(CPU) == sys.maxsize


def test_what_holds_itself_is_given_back():
    class Holder:
        pass

    holder = Holder()
    holder.itself = holder
    held = weakref.ref(holder)
    del holder
    give_back()
    assert held() is None


def test_an_allocator_that_cannot_give_back_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail() -> None:
        raise RuntimeError("INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    give_back()
    assert "INTERNAL ASSERT" in caplog.text
