from __future__ import annotations

from common.unknown_variables import told_of_misspelt, told_of_unknown

KNOWN = frozenset({"OCTAVO_PORT", "OCTAVO_MAX_NUM_SEQS", "OCTAVO_METRICS_COMPAT"})


def test_every_unknown_variable_is_named_with_the_nearest_known_one() -> None:
    environ = {
        "OCTAVO_MAX_NUM_SEQ": "5",
        "OCTAVO_BOGUS": "1",
        "OCTAVO_PORT": "1",
        "OCTAVO_EMPTY": "",
        "PORT": "1",
    }
    assert told_of_unknown(KNOWN, environ) == (
        "ignored, as no flag is called so: OCTAVO_BOGUS,"
        " OCTAVO_MAX_NUM_SEQ (did you mean OCTAVO_MAX_NUM_SEQS?)"
    )
    assert told_of_unknown(KNOWN, {"OCTAVO_PORT": "1"}) is None


def test_what_may_be_meant_for_another_service_is_not_misspelt() -> None:
    environ = {"OCTAVO_METRICS_PORT": "1", "OCTAVO_BOGUS": "1"}
    assert told_of_misspelt(KNOWN, environ) is None
    told = told_of_misspelt(KNOWN, environ | {"OCTAVO_PORTS": "1"})
    assert told is not None
    assert "OCTAVO_PORTS (did you mean OCTAVO_PORT?)" in told
    assert "BOGUS" not in told
