"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Callable[[int], T], n: int = 8) -> list[T]:
    """``[work(0), work(1), ...]``, each in a thread of its own. Raises what the first one raised that did."""
    done: dict[int, T] = {}
    failed: list[BaseException] = []

    def run(i: int) -> None:
        try:
            done[i] = work(i)
        except BaseException as error:  # noqa: BLE001 -- raised again below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]
    return [done[i] for i in range(n)]
