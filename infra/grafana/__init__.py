"""Grafana: dashboards made from the canned queries and the exporter's catalogue."""
