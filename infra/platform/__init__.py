"""The local platform: a real Kafka and a real schema registry under one data folder."""
