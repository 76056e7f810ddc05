"""The tensors of packed rows."""

from __future__ import annotations

import numpy as np
import torch

from learner.packed import Member, pack_rows


def member(index: int, ids: list[int], actions: int) -> Member:
    mask = np.zeros(len(ids), dtype=np.uint8)
    mask[len(ids) - actions :] = 1
    return Member(
        index=index,
        ids=np.array(ids, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        mask=mask,
        advantage=float(index),
        count=1.0,
        temperature=1.0,
    )


def test_branches_of_a_row_see_their_prefix_and_themselves_only() -> None:
    packed = pack_rows([[member(0, [1, 2, 3, 4], 2), member(1, [1, 2, 5, 6, 7], 3)]], pad_to=1)
    assert packed.ids_RT.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert packed.position_RT.tolist() == [[0, 1, 2, 3, 2, 3, 4]]
    allowed = packed.allowed_RTT[0]
    assert allowed[3].tolist() == [True, True, True, True, False, False, False]
    assert allowed[6].tolist() == [True, True, False, False, True, True, True]
    # The shared last prompt token predicts the first action of both branches.
    assert packed.source_N.tolist() == [1, 2, 1, 4, 5]
    assert packed.target_N.tolist() == [3, 4, 5, 6, 7]
    assert packed.member_N.tolist() == [0, 0, 1, 1, 1]
    assert packed.at_N.tolist() == [2, 3, 2, 3, 4]


def test_padding_sees_only_itself_and_predicts_nothing() -> None:
    packed = pack_rows([[member(0, [1, 2, 3], 1)], [member(1, [1, 2, 3, 4, 5], 1)]], pad_to=8)
    assert packed.ids_RT.shape == (2, 8)
    assert packed.allowed_RTT[0, 7].nonzero().tolist() == [[7]]
    assert packed.source_N.tolist() == [1, 8 + 3]
    assert torch.equal(packed.advantage_N, torch.tensor([0.0, 1.0]))
