"""Any dataset of reasoning-gym, by name and configuration."""
