"""The engine's number format follows the hardware unless it is set."""

from __future__ import annotations

import pytest

from inference.number_format import resolve_dtype


@pytest.mark.parametrize(
    ("asked", "flags", "expected"),
    [
        ("auto", {"avx2"}, "float32"),
        ("auto", {"avx2", "avx512_bf16"}, "bfloat16"),
        ("auto", {"amx_bf16"}, "bfloat16"),
        ("auto", {"gpu"}, "bfloat16"),
        ("bfloat16", {"avx2"}, "bfloat16"),
        ("float32", {"gpu"}, "float32"),
    ],
)
def test_auto_means_bf16_only_where_the_hardware_multiplies_it(
    asked: str, flags: set[str], expected: str
) -> None:
    assert resolve_dtype(asked, flags) == expected
