"""What matches does not depend on how the text was cut, and no text is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service.api.stop_strings import StopMatcher, StopStrings

alphabet = st.text(alphabet="ab\u00e9", min_size=1, max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(StopStrings(stops))
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.match is not None:
            return shown, matcher.match
    return shown + matcher.flush(), None


def by_brute_force(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that is completed first, the longest of several."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(
    stops=st.lists(alphabet, min_size=1, max_size=4),
    pieces=st.lists(st.text(alphabet="ab\u00e9", max_size=6), max_size=8),
)
@settings(max_examples=500, deadline=None)
def test_any_cut_matches_like_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == by_brute_force(stops, "".join(pieces))


@given(
    stops=st.lists(alphabet, min_size=1, max_size=4),
    pieces=st.lists(st.text(alphabet="ab\u00e9", max_size=6), max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_text_is_held_only_while_it_may_begin_a_stop_string(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.match is not None:
            return
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_held_text_is_given_back_when_no_match_comes() -> None:
    assert run(["DREI\nXXXX"], ["EINS ", "ZWEI ", "DR", "EI"]) == ("EINS ZWEI DREI", None)
    assert run(["<|end|>"], ["<"]) == ("<", None)


def test_text_before_a_match_is_shown_and_text_behind_it_is_not() -> None:
    assert run(["white"], ["blue, black, wh", "ite, pink"]) == ("blue, black, ", "white")


def test_a_stop_string_completed_in_unstoppable_text_is_text() -> None:
    matcher = StopMatcher(StopStrings(["ab", "aba"]))
    assert matcher.push_unstoppable("xab") == "x"  # what follows may make it "aba"
    assert matcher.push("c") == "abc"
    assert matcher.match is None
    assert matcher.push("ab") == ""
    assert matcher.match == "ab"


def test_the_longest_of_several_that_end_together_matches() -> None:
    assert run(["b", "ab"], ["xab"]) == ("x", "ab")
    assert run(["abc", "b"], ["abc"]) == ("a", "b")
