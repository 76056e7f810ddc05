"""Second half of the set-up: jars, registry, model, compiled operations.

Run as `python -m infra.setup` with the environment that the first half made.
"""

import os
import subprocess
import sys

from infra.setup import artifacts, extensions, model
from infra.setup.places import KAFKA_VERSION, Places, find_places
from infra.setup.steps import run_step, say
from schemas.errors import SluiceError


def prepare(places: Places) -> None:
    """Run every step that is not done yet; raises what the step raises."""
    locks = places.home / "locks"
    run_step(
        f"kafka {KAFKA_VERSION}",
        places.kafka_clients_jar.exists,
        lambda: artifacts.fetch_kafka(places),
        places.kafka_jars,
        locks / "jars",
    )
    run_step(
        "schema registry",
        places.registry_jar.exists,
        lambda: artifacts.fetch_registry(places),
        places.registry_app,
        locks / "jars",
    )
    run_step(
        "model smollm2-135m",
        lambda: model.model_is_ready(places),
        lambda: model.fetch_model(places),
        places.model,
        locks / "model",
    )
    run_step(
        "deepspeed operation",
        extensions.extensions_stamp(places).exists,
        lambda: extensions.compile_extensions(places),
        places.torch_extensions,
        locks / "extensions",
    )


def main() -> int:
    """Run the second half of the set-up; 0 done, 1 failed."""
    try:
        prepare(find_places(os.environ))
    except SluiceError as error:
        say(f"set-up failed: {error}")
        return 1
    except subprocess.TimeoutExpired as error:
        say(f"set-up failed: {error}; run `make setup` again on an idle machine")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
