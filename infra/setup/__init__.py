"""What `make setup` fetches and builds, each step once, under one cache folder."""
