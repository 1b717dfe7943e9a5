from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_fits_the_source_as_it_is_now(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert (ROOT / mutation.test.split("::")[0]).is_file()
