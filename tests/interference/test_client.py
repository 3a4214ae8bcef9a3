"""The client's parser of events: any way of cutting the bytes gives the same; the key is never shown."""

import html
import json
import traceback
from contextlib import suppress
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.errors import InputError, shown
from costmodel.validation.interference.addresses import parse_url
from costmodel.validation.interference.answers import Answered, Events
from costmodel.validation.interference.client import Client
from costmodel.validation.interference.exchange import RequestError

EVENTS = 'data: {"a": 1}\n\n: a comment\r\ndata: two\r\ndata:lines\r\n\r\nevent: x\nid: 3\ndata: é\n\n'.encode()


def pieces(data, cuts):
    """Cut bytes at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


@given(st.lists(st.integers(0, 1000), max_size=8))
def test_events_do_not_depend_on_the_cuts(cuts):
    events = Events()
    found = [text for piece in pieces(EVENTS, cuts) for text in events.feed(piece)]
    assert found == ['{"a": 1}', "two\nlines", "é"]


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(data):
    with suppress(RequestError):
        Events().feed(data)


KEYS = ["choices", "usage", "text", "error", "token_ids", "delta", "completion_tokens", "finish_reason"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(json_values)
def test_any_json_is_taken_or_refused(content):
    answered = Answered()
    with suppress(RequestError):
        answered.take(content)
        answered.check()
    assert answered.tokens >= 0


@pytest.mark.parametrize(
    ("url", "base", "shown"),
    [
        ("http://localhost:8000", "", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "", "http://localhost:8000"),
        ("https://api.example.com/llm/v1", "/llm", "https://api.example.com/llm"),
        ("http://[::1]:80", "", "http://[::1]:80"),
    ],
)
def test_addresses(url, base, shown):
    address = parse_url(url)
    assert (address.base, address.url) == (base, shown)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://a b",
        "http://x/\n",
        "http://[x",
        "http://é",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(InputError, match="--url"):
        parse_url(url)


@pytest.mark.parametrize(
    "url", ["http://me:sesame@x", "http://sesame@x/v1", "http://x/?key=sesame", "http://x/#sesame"]
)
def test_secrets_in_an_address_are_refused_and_not_shown(url):
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert "sesame" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("key", ["sesame-open", "sesame/op+en=", "sesame&<open>"])
def test_a_key_that_the_server_quotes_is_not_shown(key):
    client = Client(parse_url("http://x"), key=key)
    texts = [f"Incorrect API key provided: {key}", html.escape(f"'{key}'"), json.dumps(key), quote(key, safe="")]
    for text in (*texts, *(shown("x" * cut + key) for cut in range(40, 60))):
        assert "sesam" not in client.clean(text)
