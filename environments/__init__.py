"""The world the policy acts in: tasks, rubrics, sandboxes and the environment worker."""
