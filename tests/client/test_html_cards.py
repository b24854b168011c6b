"""The cards that notebooks show: what is on them, and that nothing on them is anybody's HTML."""

from __future__ import annotations

import threading
from html.parser import HTMLParser

import pytest

from actorgrid.client.client import Client
from actorgrid.client.futures import JobFuture
from actorgrid.client.html_cards import MAX_CHARS, card
from tests.client.stand_in import client_of_stand_in

VOID = ("br", "hr", "img", "input")


class Page(HTMLParser):
    """The texts of a card, and its tags, which must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


client = pytest.fixture(scope="module")(client_of_stand_in)


def test_what_users_wrote_is_text_and_cut_off() -> None:
    page = Page(card("<i>", [("<b>", "<script>alert(1)</script>"), ("long", "x" * 999), ("none", None), ("empty", "")]))
    assert page.tags == {"div", "b", "table", "tr", "td"}
    assert page.texts[:3] == ["<i>", "<b>", "<script>alert(1)</script>"]
    assert page.texts[3:] == ["long", "x" * (MAX_CHARS - 1) + "…"], "rows without a value are left out"


def test_a_future_says_how_it_is_and_unpickles_nothing(client: Client) -> None:
    done, failed = client.submit(abs, -1), client.submit(int, "<b>")
    ended = threading.Event()
    failed.add_done_callback(lambda _: ended.set())
    assert done.result(60) == 1 and ended.wait(60)
    assert Page(done._repr_html_()).texts == ["TaskFuture", "done", "function", "abs"]
    assert Page(failed._repr_html_()).texts == ["TaskFuture", "failed", "function", "int"]
    failed.exception(60)
    assert "ValueError" in Page(failed._repr_html_()).texts[-1]
    job: JobFuture[int] = JobFuture("j1", "<name>", lambda _: True)
    assert Page(job._repr_html_()).texts == ["JobFuture", "not done", "job", "j1", "name", "<name>"]
    assert job._cancelled() and "cancelled" in Page(job._repr_html_()).texts


def test_a_client_that_reaches_nobody_says_so_and_a_closed_one_that_it_is_closed() -> None:
    client = Client("http://127.0.0.1:9")
    assert "out of reach" in Page(client._repr_html_()).texts
    client.close()
    assert Page(client._repr_html_()).texts == ["Client", "closed", "host", "http://127.0.0.1:9"]
