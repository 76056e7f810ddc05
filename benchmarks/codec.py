"""How many 64-token commits one core encodes and decodes into typed records a second.

Prints a list of {name, value, unit, goal, conditions} as JSON: `python -m benchmarks.codec`.
"""

from __future__ import annotations

import json
import platform
import time
from random import Random
from typing import Any

from schemas.codec import Codec
from schemas.enums import TokenKind
from schemas.ids import EpisodeId, GroupId, RunId, Version, WorkerId
from schemas.packing import (
    Span,
    Timing,
    crc32c,
    pack_floats,
    pack_ids,
    pack_logprobs,
    pack_spans,
    pack_timing,
)
from schemas.records.token_commit import TokenCommit
from schemas.topics import TOKENS

TOKENS_PER_COMMIT = 64
GOAL = 80_000
_RUN = RunId("0190a0b0-1234-7abc-8def-0123456789ab")


def commits(episodes: int, per_episode: int, *, seed: int = 0) -> list[TokenCommit]:
    """Return commits of many episodes, interleaved as a busy partition holds them."""
    random = Random(seed)
    now_us = 1_764_442_000_000_000
    out = []
    for seq in range(per_episode):
        for episode in range(episodes):
            now_us += random.randrange(1, 900)
            start = 180 + seq * TOKENS_PER_COMMIT
            ids = pack_ids(random.randrange(50_000) for _ in range(TOKENS_PER_COMMIT))
            logprobs = pack_logprobs(-random.expovariate(1.0) for _ in range(TOKENS_PER_COMMIT))
            spans = pack_spans([Span(start, start + TOKENS_PER_COMMIT, Version(1, 7))])
            timing = Timing(
                requested_us=now_us - 90_000,
                first_token_us=now_us - 60_000,
                last_token_us=now_us,
                prefilled_tokens=180,
                reused_tokens=0,
            )
            out.append(
                TokenCommit(
                    run_id=_RUN,
                    episode_id=EpisodeId(f"{_RUN}.{1000 + episode // 8}.{episode % 8}"),
                    group_id=GroupId(f"{_RUN}.{1000 + episode // 8}.g"),
                    attempt=1,
                    fence_number=1,
                    writer_id=WorkerId(f"inference-{episode % 2}"),
                    incarnation=f"0190a0b1-0000-7abc-8def-00000000000{episode % 2}",
                    producer_number=1,
                    kind=TokenKind.ACTION,
                    turn=seq // 4,
                    seq=seq + 1,
                    start=start,
                    count=TOKENS_PER_COMMIT,
                    token_ids=ids,
                    logprobs=logprobs,
                    spans=spans,
                    sampling=pack_floats((1.0, 1.0, 0.0, 512.0)),
                    timing=pack_timing(timing),
                    crc32c=crc32c(ids, logprobs, spans),
                    at_us=now_us,
                )
            )
    return out


def _rate(records: list[TokenCommit], codec: Codec, *, slowly: bool) -> float:
    encode = codec.encode_slowly if slowly else codec.encode
    decode = codec.decode_slowly if slowly else codec.decode
    begin = time.process_time()
    for record in records:
        decode(TOKENS, encode(TOKENS, record))
    return len(records) / (time.process_time() - begin)


def run(*, rounds: int = 15, episodes: int = 500, per_episode: int = 8) -> list[dict[str, Any]]:
    """Measure; the value is the median round, both ways paired in the same rounds."""
    codec = Codec.local()
    records = commits(episodes, per_episode)
    fast, slow = [], []
    for _ in range(rounds):
        fast.append(_rate(records, codec, slowly=False))
        slow.append(_rate(records[: len(records) // 8], codec, slowly=True))
    median, reference = sorted(fast)[rounds // 2], sorted(slow)[rounds // 2]
    return [
        {
            "name": "codec_records_per_s",
            "value": round(median),
            "unit": "records/s",
            "goal": GOAL,
            "conditions": f"processor time of one {platform.machine()} core, {TOKENS_PER_COMMIT} "
            f"tokens a commit, {episodes} episodes in turn, encode + decode, median of {rounds} "
            f"rounds of {len(records)}; best {round(max(fast))}, fastavro alone {round(reference)}",
        }
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
