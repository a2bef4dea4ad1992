"""Pictures of graphs, schedules and time."""
