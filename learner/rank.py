"""One rank at work: does what is broadcast. Ranks beside rank 0 touch no bus and end with their
parent.

Waits for: the next broadcast. Unblocked by: rank 0's work, or its end, which closes this process's
standard input. Started as `python -m learner.rank`; settings, rank, port and weights come as one
line of JSON on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path

from learner.core.loss_registry import bind
from learner.engine import Engine, RankResult
from learner.settings import LearnerSettings
from learner.work import EndWork, LoadWork, SaveWork, TrainWork, Work, load_rows


def execute(engine: Engine, work: Work) -> RankResult:
    """Do one piece of work on this rank, together with all other ranks."""
    match work:
        case TrainWork():
            if work.reset_optimiser:
                engine.reset_optimiser()
            return engine.train(
                [partial(load_rows, micro) for micro in work.by_rank[engine.rank]],
                ordinal=work.ordinal,
                action_tokens=work.action_tokens,
            )
        case SaveWork(folder=folder):
            engine.save(Path(folder))
        case LoadWork(folder=folder):
            engine.load(Path(folder))
        case EndWork():
            pass
    return RankResult()


def start_line(settings: LearnerSettings, *, rank: int, port: int) -> str:
    """Return the line that starts a rank."""
    told = {"settings": settings.model_dump(mode="json"), "rank": rank, "port": port}
    return json.dumps(told) + "\n"


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Serve one rank until it is told to end."""
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    settings = LearnerSettings.model_validate(told["settings"])
    loss = bind(settings.loss.name, settings.loss.parameters)
    engine = Engine(settings, loss, rank=int(told["rank"]), port=int(told["port"]))
    while True:
        work: Work = engine.broadcast(None)
        engine.gather(execute(engine, work))
        if isinstance(work, EndWork):
            engine.close()
            return


if __name__ == "__main__":
    main()
