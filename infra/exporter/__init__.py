"""What every process exports to Prometheus: derived from the records that pass its doors."""
