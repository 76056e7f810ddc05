"""The hand that starts the services: the `sluice` command, settings, local platform, deployment."""
