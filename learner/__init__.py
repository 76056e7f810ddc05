"""The learner: trains on what the gate lets through and publishes immutable policy versions."""
