"""A GPU that exists in this process only, so that what drives one is tested without one."""
