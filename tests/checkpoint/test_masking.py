"""Masking chunk by chunk: whichever is worked on first, the first of the equals go first."""

import threading

import pytest
import torch

from lamplighter.checkpoint.masking import CutMask
from lamplighter.checkpoint.threads import Stopped, Turnstile, Workers, thread_count
from lamplighter.errors import LamplighterError
from lamplighter.spectra import Cut


def test_a_later_chunk_waits_for_those_before_it():
    entries = torch.ones(12)
    code = int(torch.ones(1).view(torch.int32))
    mask = CutMask(Cut(code, drop=7), step=4, stopped=threading.Event())
    late = threading.Thread(target=mask.apply, args=(entries[8:], 2))
    middle = threading.Thread(target=mask.apply, args=(entries[4:8], 1))
    late.start()
    middle.start()
    late.join(0.2)
    assert late.is_alive()
    mask.apply(entries[:4], 0)
    late.join()
    middle.join()
    assert entries.tolist() == [0] * 7 + [1] * 5


def test_nobody_waits_for_what_is_used_up():
    turnstile = Turnstile(3, threading.Event())
    assert turnstile.take(0, 5) == 3
    assert turnstile.exhausted
    assert turnstile.take(7, 5) == 0


def test_waiting_ends_when_another_thread_fails():
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(Stopped):
        Turnstile(3, stopped).take(1, 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_stops_all_threads(threads):
    begun = []

    def work(task):
        begun.append(task)
        if task == 5:
            raise LamplighterError("five")

    before = torch.get_num_threads()
    with pytest.raises(LamplighterError, match="five"):
        Workers(threads, work).run(range(100_000))
    assert len(begun) < 100_000
    assert torch.get_num_threads() == before
    assert threading.active_count() < 10


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_numbers_of_threads_that_are_none_are_refused(threads):
    with pytest.raises(LamplighterError, match="expected a whole number from 1 up"):
        thread_count(threads)
