"""From records to spans; pure."""
