"""The verifier: judges ended episodes with the rubrics that live with their tasks."""
